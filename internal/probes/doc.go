// Package probes lets the host's own connections, such as the kubelet's probes, reach pods whose traffic a node's proxy
// captures. The connections get a source address of their own, which the rules in the pods let pass, and pods' addresses
// are in a set of the host's kernel.
//
//	s, err := probes.New(probes.Options{NetNS: host, IPv4: v4, IPv6: v6})
//	s.Sync(ctx, entries)   // after a start: all captured pods
//	s.Put(uid, addresses)  // a pod was captured
//	s.Delete(uid)          // a pod is captured no more
//	s.Ensure(ctx)          // in each round: mends what somebody broke
//	s.Remove(ctx)          // for good
//
// A [Set] is a nodecontrol.Probes.
//
// # Which connections
//
// TCP connections that a socket of the host opens to an address of the set: of any process on the host's network, also
// when the host's own rules or IPVS turned a service's address into the pod's. What the host forwards has no socket, so
// it never gets the source, whoever sent it. Connections that are open when a pod joins go on as they are.
//
// # The table
//
// All is one table of nftables (Linux 5.2), made by netlink and without any program, whatever the pods' own rules are made of. Each change is one transaction, of single entries: the sets
// are never emptied while they are in use. The comment of an entry is the pod's UID, so that a restarted agent knows
// whose it is.
//
//	table inet meshcni-probes {
//		set v4 {
//			type ipv4_addr
//			elements = { 10.244.1.5 comment "0b5e1ab4-7d5c-4b53-9d54-8a2f3f1c9a01" }
//		}
//
//		set v6 {
//			type ipv6_addr
//			elements = { fd00:10:244::5 comment "0b5e1ab4-7d5c-4b53-9d54-8a2f3f1c9a01" }
//		}
//
//		chain postrouting {
//			type nat hook postrouting priority srcnat - 10; policy accept;
//			ip daddr @v4 meta l4proto tcp meta skuid >= 0 snat ip to 169.254.7.127
//			ip6 daddr @v6 meta l4proto tcp meta skuid >= 0 snat ip6 to fd16:9254:7127:1337:ffff:ffff:ffff:ffff
//		}
//
//		chain prerouting {
//			type filter hook prerouting priority raw; policy accept;
//			ip saddr 169.254.7.127 counter drop
//			ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter drop
//		}
//	}
//
// "meta skuid >= 0" matches every packet that has a socket with a user, and nothing that is forwarded. The priority comes
// before srcnat, at which kube-proxy, network plugins and both variants of iptables masquerade: the first NAT rule that
// matches a connection has the say, and all run in the order of their priorities. The answers of a pod come back by
// connection tracking. So the source needs no route, strict reverse path filters pass, and a host that exempts its
// packets from tracking cannot have this.
//
// The chain prerouting drops what arrives with the source from elsewhere, a pod or another machine. Only the host gives
// the source, on the way out. Two pods on one bridge that does not hand its packets to the host's rules
// (net.bridge.bridge-nf-call-iptables=0) are beyond it.
//
// # Other agents'
//
// The entries of Istio's agent are taken over: they are copied, and once ours are in force its table of nftables goes and its ipsets are
// emptied. Its rules of iptables then match nothing, and stay until the host boots.
//
// # Pods with an interface of their own (AWS branch ENI)
//
// Where the host has tcp_early_demux off and a policy rule "iif VETH lookup TABLE" whose table has a route to the single
// address of a pod, the answers to our source would leave by the cloud's network. Each such address of the set gets
//
//	ip rule add pref 512 to ADDRESS lookup TABLE protocol 173
//	ip rule add pref PREF-1 iif VETH lookup local protocol 173
//
// where PREF is the priority of the rule that was found. They go with the entry; the protocol tells them from others'.
package probes
