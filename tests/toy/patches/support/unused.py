raise SystemExit("nobody imports this")
