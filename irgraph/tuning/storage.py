"""Storages of studies: connections that are closed, heartbeats whose errors are raised."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

HEARTBEAT = 30
"""Seconds between heartbeats of a trial in a database: Optuna fails a trial without them."""


def open_storage(optuna: Any, storage: str) -> Any:  # noqa: ANN401  (Optuna's storage)
    """Return a storage; a database detects dead trials by their heartbeat.

    No connection remains open if the database cannot be used.
    """
    if "://" not in storage or storage.startswith("redis"):
        return storage
    pools: list[Any] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            database = optuna.storages.RDBStorage(
                storage,
                heartbeat_interval=HEARTBEAT,
                engine_kwargs={"poolclass": _listed_pool(storage, pools)},
            )
    except Exception:
        for pool in pools:
            pool.dispose()
        raise
    _store_heartbeat_errors(database)
    if storage.startswith("sqlite"):
        _enable_write_ahead_log(database.engine)
    return database


def _listed_pool(storage: str, pools: list[Any]) -> Any:  # noqa: ANN401  (a class of SQLAlchemy's)
    """Return the class of a storage's connection pools, which lists its instances.

    A storage that Optuna fails to open is not returned: only the list leads to its connections.
    """
    from sqlalchemy import make_url

    url = make_url(storage)
    dialect: Any = url.get_dialect()
    pool_class: Any = dialect.get_pool_class(url)

    class ListedPool(pool_class):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments, **options)
            pools.append(self)

    return ListedPool


def _store_heartbeat_errors(database: Any) -> None:  # noqa: ANN401  (Optuna's storage)
    """Store the error of a heartbeat, which otherwise ends its thread with a traceback."""
    record = database.record_heartbeat
    database.heartbeat_error = None

    def record_heartbeat(trial: int) -> None:
        try:
            record(trial)
        except Exception as error:
            database.heartbeat_error = error
        else:
            database.heartbeat_error = None

    database.record_heartbeat = record_heartbeat


def raise_heartbeat_error(storage: Any) -> None:  # noqa: ANN401  (Optuna's storage)
    """Raise the error of a storage's last heartbeat, if it failed.

    Without heartbeats, the trials of a killed process would remain open forever.
    """
    error = getattr(_backend(storage), "heartbeat_error", None)
    if error is not None:
        raise error


def close_storage(storage: Any) -> None:  # noqa: ANN401  (Optuna's storage)
    """Close all connections of a storage, which opens new ones if it is used again.

    The write-ahead log of a SQLite database is moved into its file, so that a copy is complete. If
    another process is using the database, the last one to end does so.
    """
    engine = getattr(_backend(storage), "engine", None)
    if engine is None:
        return
    engine.dispose()
    if engine.dialect.name != "sqlite":
        return
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


@contextlib.contextmanager
def close_on_error(storage: Any) -> Iterator[None]:  # noqa: ANN401  (Optuna's storage)
    """Close all connections of a storage if the block raises: they may lock a file."""
    try:
        yield
    except BaseException:
        close_storage(storage)
        raise


def _backend(storage: Any) -> Any:  # noqa: ANN401
    """Return the storage below a cache."""
    return getattr(storage, "_backend", storage)


def _enable_write_ahead_log(engine: Any) -> None:  # noqa: ANN401  (SQLAlchemy's)
    """Enable the write-ahead log of a SQLite file: Optuna commits a dozen times per trial.

    Written data survives the end of the process; a power failure may lose the last trials.
    """
    from sqlalchemy import event

    def set_pragmas(connection: Any, _: object) -> None:  # noqa: ANN401  (sqlite3's)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", set_pragmas)
    engine.dispose()  # existing connections have the old settings
