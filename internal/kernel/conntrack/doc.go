// Package conntrack makes the kernel's connection tracking of a pod's network namespace know what it has to know when rules that
// redirect come and go.
//
// Rules of table nat see the first packet of each connection that conntrack knows. Where no rule of a namespace uses conntrack, it
// knows no connection, so the next packet of each that is open would be the first, and would be redirected to a listener that never
// heard of it: reset. [Table.Adopt] gives conntrack an entry for each connection that the namespace's sockets have, which keeps its
// packets from being redirected.
//
// The other way round, a datagram socket that asks the same resolver again and again is one connection, which stays redirected
// after the rules are gone. [Table.ForgetDatagrams] ends those.
package conntrack
