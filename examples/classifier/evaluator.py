"""What a classifier is worth: accuracy, top-k, precision and recall of each class, and who is taken for whom.

    counts = Counts(classes, top_k=(1, 5))
    counts.add(scores, labels)                    # labels of -100 count nowhere
    counts.sum_over(place)                        # of all ranks
    counts.accuracy(1), counts.precision_and_recall(), counts.picture("confusion.png")
"""

import torch
from PIL import Image, ImageDraw

from common.place import sum_over_ranks


class Counts:
    def __init__(self, classes, top_k=(1,)):
        self.classes = list(classes)
        self.top_k = sorted({1, *(k for k in top_k if isinstance(k, int) and 1 <= k <= len(self.classes))})
        self.matrix = torch.zeros(len(self.classes), len(self.classes), dtype=torch.float64)  # [true, predicted]
        self.right = [0.0] * len(self.top_k)

    def add(self, scores, labels):
        valid = labels >= 0
        scores, labels = scores[valid].float().cpu(), labels[valid].cpu()
        if not len(labels):
            return
        ranked = scores.topk(max(self.top_k)).indices
        for place, k in enumerate(self.top_k):
            self.right[place] += int((ranked[:, :k] == labels[:, None]).any(1).sum())
        self.matrix += torch.bincount(labels * len(self.classes) + ranked[:, 0], minlength=self.matrix.numel()).reshape(self.matrix.shape)

    def sum_over(self, place):
        sums = sum_over_ranks(self.right + self.matrix.flatten().tolist(), place)
        self.right = sums[:len(self.right)]
        self.matrix = torch.tensor(sums[len(self.right):], dtype=torch.float64).reshape(self.matrix.shape)

    @property
    def total(self):
        return int(self.matrix.sum())

    def accuracy(self, k=1):
        return self.right[self.top_k.index(k)] / max(1, self.total)

    def precision_and_recall(self):
        """[(class, precision, recall, number of its pictures)]; a class that was never predicted has a precision of 0."""
        right, predicted, true = self.matrix.diagonal(), self.matrix.sum(0), self.matrix.sum(1)
        return [(name, float(right[i] / predicted[i].clamp(min=1)), float(right[i] / true[i].clamp(min=1)), int(true[i]))
                for i, name in enumerate(self.classes)]

    def picture(self, path, box_side=28, margin=120):
        """A PNG: a row for each true class, a column for each predicted one, darker for a larger share of the row."""
        side = margin + box_side * len(self.classes)
        image = Image.new("RGB", (side + 10, side + 10), "white")
        draw = ImageDraw.Draw(image)
        shares = self.matrix / self.matrix.sum(1, keepdim=True).clamp(min=1)
        for row, name in enumerate(self.classes):
            draw.text((4, margin + row * box_side + box_side // 3), name[:18], fill="black")
            draw.text((margin + row * box_side + 3, margin - 14), str(row), fill="black")
            for column in range(len(self.classes)):
                shade = int(255 * (1 - float(shares[row, column])))
                box = (margin + column * box_side, margin + row * box_side, margin + (column + 1) * box_side - 2, margin + (row + 1) * box_side - 2)
                draw.rectangle(box, fill=(shade, shade, 255), outline="gray")
                draw.text((box[0] + 3, box[1] + box_side // 3), str(int(self.matrix[row, column])), fill="white" if shade < 128 else "black")
        image.save(path)
