"""Sweeps over sizes, devices and hosts: in chunks, by several processes or a cluster, to Parquet.

Dask and pyarrow, the extra ``distributed``, are imported when a sweep runs, not with this package.
"""
