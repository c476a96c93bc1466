//go:build linux

package plugin_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// linkLocal is the address that the kernel has given the link by itself, and the link's index.
func linkLocal(t testing.TB, ns *netnsexec.NetNS, link string) (addr netip.Addr, index int) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		index = i.Index
		addrs, err := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				addr = p.Addr()
			}
		}
		return err
	}))
	require.True(t, addr.IsValid(), "%s has no link-local address", link)
	return addr, index
}

// onLink is the address as it is spoken to by the link of the index.
func onLink(a netip.Addr, index int) netip.Addr { return a.WithZone(strconv.Itoa(index)) }

// disableIPv6 switches the protocol off, or on again, on all of the namespace's interfaces.
func disableIPv6(t testing.TB, ns *netnsexec.NetNS, off string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte(off), 0) }))
}

// decision is the record of a run.
func decision(t testing.TB, out binarytest.Outcome) object {
	t.Helper()
	require.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
	var found []object
	for line := range strings.Lines(string(out.Stderr)) {
		var r object
		if json.Unmarshal([]byte(line), &r) == nil && r["msg"] == "decision" {
			found = append(found, r)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// ipv4Only is an attachment whose previous plugins gave the pod an IPv4 address only.
func ipv4Only(n *node, t testing.TB, ns *netnsexec.NetNS, uncaptured string) binarytest.Attachment {
	a := n.attach(caseOf(t, "fam-v4-default"), ns)
	config := a.Config.(object)
	prev := set(config["prevResult"].(object), "ips", []object{{"address": "10.244.1.5/24", "interface": 1}})
	a.Config = set(config, "uncaptured_family", uncaptured, "prevResult", prev)
	return a
}

var families = []string{"iptables-nft", "iptables-legacy", "nftables"}

// TestUncapturedFamilyIsDropped although nobody has told of an address: the kernel has given one, and others come later.
func TestUncapturedFamilyIsDropped(t *testing.T) {
	for _, backend := range families {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, backend)
			// What is dropped is never answered; this long is waited for what should be.
			w := netnstest.NewWorld(t, netnstest.Options{Patience: 3 * time.Second})
			d := decision(t, ipv4Only(n, t, w.Pod, "drop").Run(t, "ADD"))
			assert.Equal(t, []any{}, d["bypasses"])
			assert.Equal(t, []any{"ipv4"}, d["families"])

			inside, eth0 := linkLocal(t, w.Pod, "eth0")
			outside, pod0 := linkLocal(t, w.Out, "pod0")
			later := netip.MustParsePrefix("fd00:10:244::77/64")
			require.NoError(t, w.Pod.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: later.Addr().AsSlice(), Mask: net.CIDRMask(64, 128)}})
			}))
			app, proxy := uint32(1000), uint32(1337)
			from := func(side string, id uint32, to netip.Addr, port uint16) netnstest.Probe {
				return netnstest.Probe{From: side, Proto: "tcp", UID: id, GID: id, Dst: netip.AddrPortFrom(to, port)}
			}
			want := map[netnstest.Probe]string{
				from("out", 0, onLink(inside, pod0), 8080):              "timeout",
				from("out", 0, later.Addr(), 8080):                      "timeout",
				from("pod", app, onLink(outside, eth0), 80):             "timeout",
				from("pod", app, onLink(inside, eth0), 8080):            "app:8080 orig=[" + inside.String() + "]:8080", // within the pod
				from("pod", proxy, onLink(outside, eth0), 80):           "out:80 orig=[" + outside.String() + "]:80",    // so neighbours are found
				from("out", 0, onLink(inside, pod0), 15021):             "proxy:15021 orig=[" + inside.String() + "]:15021",
				from("out", 0, netip.MustParseAddr("10.244.1.5"), 8080): "proxy:15006 orig=10.244.1.5:8080",
			}
			var probes []netnstest.Probe
			for p := range want {
				probes = append(probes, p)
			}
			got := w.Run(probes)
			for p, fate := range want {
				assert.Equal(t, fate, got[p.String()], p)
			}
		})
	}
}

// TestIPv4BesideIPv6: on EKS with IPv6 alone a pod has an IPv4 address that no plugin names. Its connections are captured, and the record says
// that the proxy may refuse them.
func TestIPv4BesideIPv6(t *testing.T) {
	t.Parallel()
	n := newNode(t, "nftables")
	for _, beside := range []bool{true, false} {
		w := netnstest.NewWorld(t, netnstest.Options{})
		a := n.attach(caseOf(t, "fam-v4-default"), w.Pod)
		config := a.Config.(object)
		a.Config = set(config, "prevResult", set(config["prevResult"].(object), "ips", []object{{"address": "fd00:10:244::5/64", "interface": 1}}))
		if beside {
			require.NoError(t, w.Pod.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(169, 254, 172, 9).To4(), Mask: net.CIDRMask(22, 32)}})
			}))
		}
		d := decision(t, a.Run(t, "ADD"))
		assert.Equal(t, []any{"ipv4", "ipv6"}, d["families"])
		assert.Equal(t, "INFO", d["level"], "every pod of such a cluster has it")
		said := fmt.Sprint(d["warnings"])
		assert.Equal(t, beside, strings.Contains(said, "gives it 169.254.172.9 beside them") && strings.Contains(said, "excludeOutboundIPRanges"), said)
	}
}

// TestUncapturedFamilyIsNamed: what gets past the proxy by an address of which nobody told is in the record.
func TestUncapturedFamilyIsNamed(t *testing.T) {
	t.Parallel()
	n := newNode(t, "nftables")
	w := netnstest.NewWorld(t, netnstest.Options{})
	d := decision(t, ipv4Only(n, t, w.Pod, "allow").Run(t, "ADD"))
	assert.Equal(t, []any{"ipv6"}, d["bypasses"])
	assert.Equal(t, []any{"ipv4"}, d["families"])
	assert.Equal(t, []any{"ipv4"}, d["address_families"])
	require.Len(t, d["warnings"], 1)
	assert.Contains(t, d["warnings"].([]any)[0], "fe80::/10")

	inside, _ := linkLocal(t, w.Pod, "eth0")
	_, pod0 := linkLocal(t, w.Out, "pod0")
	p := netnstest.Probe{From: "out", Proto: "tcp", Dst: netip.AddrPortFrom(onLink(inside, pod0), 8080)}
	assert.Equal(t, "app:8080 orig=["+inside.String()+"]:8080", w.Run([]netnstest.Probe{p})[p.String()])
}

// TestUncapturedFamilyThatIsOff is no bypass, and is closed even so: it may be switched on.
func TestUncapturedFamilyThatIsOff(t *testing.T) {
	for _, backend := range families {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, backend)
			w := netnstest.NewWorld(t, netnstest.Options{Patience: 3 * time.Second})
			disableIPv6(t, w.Pod, "1")
			d := decision(t, ipv4Only(n, t, w.Pod, "allow").Run(t, "ADD"))
			assert.Equal(t, []any{}, d["bypasses"])
			assert.Equal(t, []any{}, d["warnings"])

			d = decision(t, ipv4Only(n, t, w.Pod, "drop").Run(t, "ADD"))
			assert.Equal(t, []any{}, d["bypasses"])
			disableIPv6(t, w.Pod, "0")
			inside, _ := linkLocal(t, w.Pod, "eth0")
			_, pod0 := linkLocal(t, w.Out, "pod0")
			app := netnstest.Probe{From: "out", Proto: "tcp", Dst: netip.AddrPortFrom(onLink(inside, pod0), 8080)}
			proxy := netnstest.Probe{From: "out", Proto: "tcp", Dst: netip.AddrPortFrom(onLink(inside, pod0), 15021)}
			got := w.Run([]netnstest.Probe{app, proxy})
			assert.Equal(t, "timeout", got[app.String()])
			assert.Equal(t, "proxy:15021 orig=["+inside.String()+"]:15021", got[proxy.String()], "it is on")
		})
	}
}
