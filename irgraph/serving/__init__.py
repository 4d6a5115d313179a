"""Services: queries per second under a latency limit, hosts for a load, power, price, endurance."""
