// Package nfnetlink is a small client of netlink, and of the kernel's netfilter: requests, lists, transactions, and the attributes that
// they are made of. What is read has bounds, since a pod may fill its namespace. What the rules are is its users' business.
package nfnetlink

import "errors"

// ErrLong says that a namespace has too much of something to be read. Check with errors.Is(err, nfnetlink.ErrLong).
var ErrLong = errors.New("more than is read of one network namespace")
