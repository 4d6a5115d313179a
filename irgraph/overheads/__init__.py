"""Host overheads: what the CPU spends around the work it gives to a device (T1 to T5)."""

from irgraph.overheads.table import HostTable, host_rows, host_values, list_hosts, load_host

__all__ = ["HostTable", "host_rows", "host_values", "list_hosts", "load_host"]
