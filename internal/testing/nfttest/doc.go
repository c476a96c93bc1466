// Package nfttest makes nftables chains by netlink for tests, with any name: also
// those that nft and iptables neither take nor print.
package nfttest
