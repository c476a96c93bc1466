package chains

// IsTarget reports whether the name, after -j, is one of iptables' own targets or a built-in chain, so that no rule jumps by it to
// a chain: iptables takes no chain of such a name. Listed are the extensions of iptables and of xtables-addons of any version.
func IsTarget(name string) bool {
	switch name {
	case "ACCEPT", "DROP", "QUEUE", "RETURN", "ERROR", "STANDARD",
		"AUDIT", "CHECKSUM", "CLASSIFY", "CLUSTERIP", "CONNMARK", "CONNSECMARK", "CT", "DNAT", "DNPT", "DSCP", "ECN", "HL", "HMARK",
		"IDLETIMER", "LED", "LOG", "MARK", "MASQUERADE", "MIRROR", "NAT", "NETMAP", "NFLOG", "NFQUEUE", "NOTRACK", "RATEEST", "REDIRECT",
		"REJECT", "SAME", "SECMARK", "SET", "SNAT", "SNPT", "SYNPROXY", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TPROXY", "TRACE", "TTL", "ULOG",
		"ACCOUNT", "CHAOS", "DELUDE", "DHCPMAC", "DNETMAP", "ECHO", "IPMARK", "IPV4OPTSSTRIP", "LOGMARK", "PROTO", "RAWDNAT", "RAWSNAT",
		"ROUTE", "STEAL", "SYSRQ", "TARPIT", "XOR":
		return true
	}
	return IsBuiltin(name)
}
