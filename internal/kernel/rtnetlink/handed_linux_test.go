package rtnetlink_test

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestHanded: it is told whose packets netfilter does not see, as sandboxed runtimes set up a pod's namespace on the real kernel; and nothing
// of a pod whose packets it sees, whatever runs in it.
func TestHanded(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("ip"), netnstest.Binary("tc"))
	const eth0 = "ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up; ip addr add 10.244.1.5/24 dev eth0; "
	const bridge = "ip link add br0 type bridge; ip link set br0 up; "
	const tap = "ip tuntap add tap0 mode tap; ip link set tap0 up; "
	const inner = "ip link add veth1 type veth peer name inner1; ip link set veth1 master br0; "
	none := []rtnetlink.Handed(nil)
	is := func(link, to string) []rtnetlink.Handed { return []rtnetlink.Handed{{Link: link, To: to}} }
	for _, test := range []struct {
		name, script string
		want         []rtnetlink.Handed
	}{
		{"plain", eth0, none},
		{"Kata, by u32", eth0 + tap + "tc qdisc add dev eth0 ingress; tc filter add dev eth0 parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev tap0", is("eth0", "tap0, by tc")},
		{"by a chain, beside others", eth0 + tap + "tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress protocol ip prio 1 u32 match u8 0 0 action mirred egress mirror dev tap0; tc filter add dev eth0 ingress protocol ip chain 3 prio 2 u32 match u8 0 0 action mirred egress redirect dev tap0", is("eth0", "tap0, by tc")},
		{"by a block that interfaces share", eth0 + tap + "tc qdisc add dev eth0 ingress_block 22 ingress; tc filter add block 22 protocol all u32 match u8 0 0 action mirred egress redirect dev tap0", is("eth0", "tap0, by tc")},
		{"macvtap", eth0 + "ip link add mt0 link eth0 type macvtap mode bridge", is("eth0", "a machine, by the macvtap mt0")},
		{"bridge without an address", eth0 + bridge + tap + "ip addr add 169.254.75.10/32 dev br0; ip addr flush dev eth0; ip link set eth0 master br0; ip link set tap0 master br0", is("eth0", "the ports of a bridge, br0")},
		{"the same, its address on an interface that is none", eth0 + bridge + tap + "ip addr flush dev eth0; ip link add d0 type ifb; ip addr add 10.244.1.5/24 dev d0; ip link set eth0 master br0; ip link set tap0 master br0", is("eth0", "the ports of a bridge, br0")},
		{"bridge with the pod's address and a tap", eth0 + bridge + tap + "ip addr flush dev eth0; ip addr add 10.244.1.5/24 dev br0; ip link set eth0 master br0; ip link set tap0 master br0", is("eth0", "the ports of a bridge, br0")},
		{"gVisor: the address is gone", eth0 + "ip addr flush dev eth0", is("", "a network stack of its own")},
		{"a BPF program", eth0 + "tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress bpf bytecode '1,6 0 0 1,'", []rtnetlink.Handed{{Link: "eth0", To: "a program of tc's ingress (bpf)", Unsure: true}}},

		{"no interface yet", "true", none},
		{"bridge with the pod's address", eth0 + bridge + "ip addr flush dev eth0; ip addr add 10.244.1.5/24 dev br0; ip link set eth0 master br0", none},
		{"docker's bridge", eth0 + bridge + inner + "ip addr add 172.17.0.1/16 dev br0", none},
		{"an inner bridge without an address", eth0 + bridge + inner, none},
		{"KubeVirt's masquerade", eth0 + bridge + tap + "ip addr add 10.0.2.1/24 dev br0; ip link set tap0 master br0", none},
		{"an inner container's, and egress", eth0 + tap + inner[:strings.Index(inner, "ip link set")] + "tc qdisc add dev veth1 clsact; tc filter add dev veth1 ingress protocol all u32 match u8 0 0 action mirred egress redirect dev tap0; " +
			"tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress protocol all u32 match u8 0 0 action mirred egress redirect dev tap0", none},
		{"a copy", eth0 + tap + "tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress protocol all u32 match u8 0 0 action mirred egress mirror dev tap0", none},
		{"shaping by an ifb", eth0 + "ip link add ifb0 type ifb; tc qdisc add dev eth0 ingress; tc filter add dev eth0 parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev ifb0", none},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			run(t, ns.Path(), test.script)
			c := rtnetlink.New(ns, rtnetlink.Default)
			defer c.Close()
			got, err := c.Handed([]netip.Addr{netip.MustParseAddr("10.244.1.5")})
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}

	ns := netnstest.New(t)
	run(t, ns.Path(), "i=0; while [ $i -lt 260 ]; do echo link add v$i type veth peer name w$i; i=$((i+1)); done | ip -batch -")
	c := rtnetlink.New(ns, rtnetlink.Default)
	defer c.Close()
	_, err := c.Handed(nil)
	require.ErrorIs(t, err, nfnetlink.ErrLong, "too many to look at: it cannot be told")
}

func run(t *testing.T, netns, script string) {
	t.Helper()
	out, err := exec.Command("nsenter", "--net="+netns, "sh", "-ec", script).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestClassifiers: this kernel has not each classifier; where each keeps its actions is the kernel's interface. The messages are as
// iproute2 writes them, and a kernel that has the classifier lists them.
func TestClassifiers(t *testing.T) {
	t.Parallel()
	const basic = 3 // TCA_BASIC_ACT of linux/pkt_cls.h
	redirect := func(index uint32) []byte { return binary.NativeEndian.AppendUint32(mirred(1), index) }
	for classifier, at := range map[string]int{"u32": nl.TCA_U32_ACT, "matchall": nl.TCA_MATCHALL_ACT, "flower": nl.TCA_FLOWER_ACT, "fw": nl.TCA_FW_ACT, "basic": basic, "bpf": 0, "cgroup": 0} {
		assert.EqualValues(t, at, rtnetlink.Actions(classifier), classifier)
		for name, want := range map[string]struct {
			parms  []byte
			to     string
			unsure bool
		}{
			"a tap":         {redirect(7), "tap0, by tc", false},
			"out of here":   {redirect(9), "other interfaces, by tc", false},
			"an ifb":        {redirect(8), "", false},
			"a copy":        {binary.NativeEndian.AppendUint32(mirred(2), 7), "", false},
			"cut short":     {mirred(1), "", false},
			"to an ingress": {binary.NativeEndian.AppendUint32(mirred(3), 7), "", false},
		} {
			if at == 0 {
				want.to, want.unsure = "a program of tc's ingress ("+classifier+")", true
			}
			to, unsure := rtnetlink.Filter(filterMessage(classifier, at, want.parms))
			assert.Equal(t, []any{want.to, want.unsure}, []any{to, unsure}, classifier+": "+name)
		}
	}
}

// mirred is struct tc_mirred but for the index of its interface. The action is 1 for redirected egress, 2 for mirrored, 3 and 4 for ingress.
func mirred(action uint32) []byte {
	b := make([]byte, 20, 28) // index, capab, action, refcnt, bindcnt
	return binary.NativeEndian.AppendUint32(b, action)
}

// filterMessage has the attributes of a filter with one action, at the attribute of its options.
func filterMessage(classifier string, at int, parms []byte) []byte {
	action := nl.NewRtAttr(1, nil)
	action.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated("mirred"))
	action.AddRtAttr(nl.TCA_ACT_OPTIONS, nil).AddRtAttr(nl.TCA_MIRRED_PARMS, parms)
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(1, []byte{1, 0, 0, 0}) // its class
	options.AddRtAttr(at, action.Serialize())
	return append(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(classifier)).Serialize(), options.Serialize()...)
}
