// Package nfnetlink is a small client of the kernel's netfilter: requests, lists, transactions, and the attributes that
// they are made of. What the rules are is its users' business.
package nfnetlink
