// Package rtnetlink reads addresses, interfaces, routes, policy rules, sockets and filters of ingress of a network namespace, and changes the
// few of them that rules need. Whoever has
// CAP_NET_ADMIN there, such as a pod, can make any number of them, so each list has a bound on messages, bytes and time, and nothing of it
// is kept but a bounded number of interfaces: the caller is called with each entry, and stops when it has seen what it looks for. The kernel is asked for one table or one link only,
// as far as it can choose (NETLINK_GET_STRICT_CHK, Linux 4.20).
//
// The library vishvananda/netlink makes a list first, of everything.
package rtnetlink
