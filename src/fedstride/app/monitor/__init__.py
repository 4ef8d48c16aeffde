"""Monitoring of a run: figures in Prometheus's text format, a health check and a dashboard, over HTTP."""

from fedstride.app.monitor.server import Prometheus as Prometheus
from fedstride.app.monitor.server import monitor_at as monitor_at
