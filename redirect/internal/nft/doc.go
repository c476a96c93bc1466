// Package nft lowers a ruleset to one nftables table, as values for package
// redirect/apply to write by netlink and as text. It does no I/O.
package nft
