// Package conntables reads how full the connection tracking tables of a node's pods are. [Tables] is also a Prometheus collector.
//
// A pod's network namespace has a table of its own. Under REDIRECT, each connection through the proxy takes two entries in it, and
// keeps them for two minutes after its end. The limit, net.netfilter.nf_conntrack_max, is one number for the whole machine, which
// each namespace's own count is compared with: only the host's namespace can change it. When a pod's table is full, the kernel drops
// the first packet of each new connection, and whoever connects waits in vain.
//
// A count is read from /proc/PID/net/stat/nf_conntrack of one of the pod's processes, without entering its namespace and without a
// privilege; finding that process takes the host's PID namespace and CAP_SYS_PTRACE. Some kernels lack the file
// (CONFIG_NF_CONNTRACK_PROCFS, which Debian leaves out); they are asked over netlink, by a socket in the pod's namespace, which takes
// CAP_SYS_ADMIN and CAP_NET_ADMIN. A full node (110 pods) costs about 10 ms of processor time each time, or 40 ms over netlink.
package conntables
