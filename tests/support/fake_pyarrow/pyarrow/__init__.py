"""As much of pyarrow as _parquet.py asks for, over files of JSON (containers.write_parquet): what an installed pyarrow gives
is tested by tests/frameworks/parquet_test.py."""


class ArrowException(Exception):
    pass


class ArrowInvalid(ValueError, ArrowException):
    pass
