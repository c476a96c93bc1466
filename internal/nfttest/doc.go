// Package nfttest writes and lists nftables chains by netlink for tests. Chains
// may have any name, also those that nft and iptables neither take nor print.
package nfttest
