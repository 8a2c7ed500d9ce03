"""The data plane's Python side: what a rank does of a schedule, and which schedule reduces which bucket."""
