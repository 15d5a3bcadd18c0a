"""The papers' mathematics: functions of tensors, which know nothing of clients, servers or nets."""
