package nft

import (
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// defaultTable is the table of an owner without prefix.
const defaultTable = "mesh"

// TableName returns the name of the owner's nftables table: the prefix in lower
// case without its final underscore, "istio" for "ISTIO_". A name that is a
// keyword of nft keeps the underscore.
func TableName(o ruleset.Owner) string {
	name := strings.ToLower(strings.TrimRight(o.Prefix, "_"))
	switch {
	case name == "":
		return defaultTable
	case strings.Contains(keywords, " "+name+" "):
		return name + "_"
	}
	return name
}

// keywords are the words that nft does not take for a table's name: those of its
// library and manual that nft 1.0.6 refuses, and those that later versions added.
const keywords = " accept add ah all and arp bridge cgroup chain comment comp constant continue counter cpu create ct " +
	"day dccp define delete describe destroy device devices dnat drop dst dup dynamic ecn element elements eq esp ether " +
	"exists expires export exthdr fib flags flow flowtable flush frag fwd gc get goto gt handle hbh hook hour ibriport " +
	"ibrname icmp icmpv6 igmp iif iifgroup iifname iiftype import include index inet insert interval ip ip6 ipsec jhash " +
	"jump last limit list log lshift lt map mark masquerade meta meter mh missing monitor ne netdev nftrace not notrack " +
	"numgen obriport obrname offload oif oifgroup oifname oiftype optstrip or osf pkttype policy position priority queue " +
	"quota random redefine redirect reject rename replace reset return rshift rt rt0 rt2 rtclassid rule ruleset sctp " +
	"secmark set size skgid skuid snat socket srh symhash synproxy table tcp th time timeout tproxy tunnel type typeof udp " +
	"udplite undefine update vlan vmap xor xt "
