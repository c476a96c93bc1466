package validate_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// pod makes a namespace with the addresses on eth0, and a default route of each
// of their families. The other end of eth0 is a router, as a pod's node is, that
// says so when a packet's hops are used up.
func pod(t *testing.T, addrs ...string) *netnsexec.NetNS {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"))
	ns := netnstest.New(t)
	if len(addrs) == 0 {
		return ns
	}
	node := netnstest.New(t)
	require.NoError(t, ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 101}, PeerName: "pod0", PeerNamespace: netlink.NsFd(node.Fd()),
		})
	}))
	require.NoError(t, node.Do(func() error {
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0); err != nil {
				return err
			}
		}
		return configure("pod0", false, addrs)
	}))
	require.NoError(t, ns.Do(func() error { return configure("eth0", true, addrs) }))
	waittest.Addrs(t, ns)
	waittest.Addrs(t, node)
	return ns
}

// configure gives the link the addresses, or the gateway's in their networks,
// and the route by that gateway.
func configure(name string, pod bool, addrs []string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range addrs {
		p := netip.MustParsePrefix(a)
		own, gateway := p.Addr(), p.Masked().Addr().Next()
		if !pod {
			own = gateway
		}
		flags := 0
		if own.Is6() {
			flags = unix.IFA_F_NODAD // else the address could not be used for a second
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(own, p.Bits())), Flags: flags}); err != nil {
			return err
		}
		// The node has a way on, too, or it would say that there is none.
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice(), Dst: ipNet(netip.PrefixFrom(own, 0).Masked())}
		if !pod {
			route.Gw = p.Addr().AsSlice()
		}
		if err := netlink.RouteAdd(route); err != nil {
			return err
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func load(t *testing.T, ns *netnsexec.NetNS, rs ruleset.Ruleset) {
	t.Helper()
	for f, tool := range map[ruleset.Family]string{ruleset.IPv4: "iptables-nft-restore", ruleset.IPv6: "ip6tables-nft-restore"} {
		if p := rs.Family(f); p != nil {
			cmd := exec.Command(tool, "--noflush")
			cmd.Stdin = bytes.NewBufferString(p.String())
			var said bytes.Buffer
			cmd.Stderr = &said
			require.NoError(t, ns.Sandbox().Run(cmd), "%s", &said)
		}
	}
}

func config(change ...func(*redirect.Redirect)) redirect.Redirect {
	r := redirect.Default()
	r.Proxy.TunnelPort = 15008
	r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}
	for _, c := range change {
		c(&r)
	}
	return r
}

func dns(r *redirect.Redirect)  { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053} }
func pass(r *redirect.Redirect) { r.Loopback, r.Proxy.PassSources = redirect.LoopbackPass, nil }

// resolver is a proxy's that listens on the loopback addresses, or another.
func resolver(to ...string) func(*redirect.Redirect) {
	return func(r *redirect.Redirect) {
		r.DNS.Servers = redirect.AllPrefixes()
		for _, a := range to {
			r.DNS.To = append(r.DNS.To, netip.MustParseAddrPort(a))
		}
	}
}

func tproxy(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }
func group(r *redirect.Redirect)  { r.Proxy.GIDs = []uint32{1337} }
func v4only(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }
func include(cidrs ...string) func(*redirect.Redirect) {
	return func(r *redirect.Redirect) {
		var prefixes []netip.Prefix
		for _, c := range cidrs {
			prefixes = append(prefixes, netip.MustParsePrefix(c))
		}
		r.Outbound.CIDRs = redirect.NoPrefixes()
		if len(prefixes) > 0 {
			r.Outbound.CIDRs = redirect.Prefixes(prefixes...)
		}
	}
}

var (
	v4   = []string{"10.244.1.5/24"}
	v6   = []string{"fd00:10:244::5/64"}
	dual = []string{"10.244.1.5/24", "fd00:10:244::5/64"}
)

// TestValidate runs as root, which can send in every name, so each aspect is
// tried: with the rules it works, without them it is missing.
func TestValidate(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		addrs    []string
		redirect redirect.Redirect
		works    []string
		untested []string
	}{
		"only lo":          {nil, config(), []string{"ipv4 inbound"}, []string{"ipv4 outbound", "ipv6 inbound", "ipv6 outbound"}},
		"only lo, dns":     {nil, config(dns), []string{"ipv4 inbound", "ipv4 dns-udp", "ipv4 dns-tcp", "ipv6 dns-udp", "ipv6 dns-tcp"}, []string{"ipv4 outbound", "ipv6 inbound", "ipv6 outbound"}},
		"ipv4":             {v4, config(v4only), []string{"ipv4 inbound", "ipv4 outbound"}, []string{"ipv6 family"}},
		"ipv6":             {v6, config(), []string{"ipv4 inbound", "ipv6 inbound", "ipv6 outbound"}, []string{"ipv4 outbound"}},
		"dual":             {dual, config(), []string{"ipv4 inbound", "ipv4 outbound", "ipv6 inbound", "ipv6 outbound"}, nil},
		"tproxy":           {dual, config(tproxy), []string{"ipv4 inbound", "ipv4 outbound", "ipv6 inbound", "ipv6 outbound"}, nil},
		"no inbound":       {v4, config(v4only, func(r *redirect.Redirect) { r.Inbound.Ports = redirect.NoPorts() }), []string{"ipv4 inbound", "ipv4 outbound"}, []string{"ipv6 family"}},
		"no outbound":      {v4, config(v4only, include()), []string{"ipv4 inbound"}, []string{"ipv4 outbound", "ipv6 family"}},
		"included address": {v4, config(v4only, include("10.96.0.0/16")), []string{"ipv4 inbound", "ipv4 outbound"}, []string{"ipv6 family"}},
		"included port": {v4, config(v4only, include(), func(r *redirect.Redirect) { r.Outbound.Ports = redirect.Ports(3306) }),
			[]string{"ipv4 inbound", "ipv4 outbound"}, []string{"ipv6 family"}},
		"listed server": {v4, config(v4only, dns, func(r *redirect.Redirect) {
			r.DNS.Servers = redirect.Prefixes(netip.MustParsePrefix("10.96.0.10/32"))
		}), []string{"ipv4 inbound", "ipv4 outbound", "ipv4 dns-udp", "ipv4 dns-tcp"}, []string{"ipv6 family"}},
		"several ids": {v4, config(v4only, func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{2000, 65534}; r.Proxy.GIDs = []uint32{3000} }),
			[]string{"ipv4 inbound", "ipv4 outbound"}, []string{"ipv6 family"}},
		"only a group": {v4, config(v4only, func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{4000} }),
			[]string{"ipv4 inbound", "ipv4 outbound"}, []string{"ipv6 family"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := pod(t, tt.addrs...)
			o := validate.Options{Redirect: tt.redirect, Namespace: ns, Timeout: 10 * time.Second}

			before, err := validate.Run(context.Background(), o)
			var missing *validate.MissingError
			require.ErrorAs(t, err, &missing, "%s", before)
			assert.ElementsMatch(t, tt.works, names(before, "missing"), "%s", before)
			for _, s := range missing.Steps {
				assert.NotEmpty(t, s.Rule, "the missing piece is named")
			}

			load(t, ns, tt.redirect.MustRuleset())
			after, err := validate.Run(context.Background(), o)
			require.NoError(t, err, "%s", after)
			assert.ElementsMatch(t, tt.works, names(after, "works"), "%s", after)
			assert.ElementsMatch(t, tt.untested, names(after, "untested"), "%s", after)
		})
	}
}

func names(r validate.Report, outcome string) []string {
	var out []string
	for _, s := range r.Steps {
		if s.Outcome == outcome {
			out = append(out, s.Family.String()+" "+s.Aspect)
		}
	}
	return out
}

// TestPartsMissing takes away one part of the rules at a time.
func TestPartsMissing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		want, live redirect.Redirect
		missing    []string
	}{
		"a family":   {config(), config(v4only), []string{"ipv6 inbound", "ipv6 outbound"}},
		"dns":        {config(v4only, dns), config(v4only), []string{"ipv4 dns-udp", "ipv4 dns-tcp"}},
		"a port":     {config(v4only), config(v4only, func(r *redirect.Redirect) { r.Proxy.OutboundPort = 16001 }), []string{"ipv4 outbound"}},
		"an address": {config(v4only), config(v4only, include("10.0.0.0/8")), []string{"ipv4 outbound"}},
		"the user":   {config(v4only), config(v4only, func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{2000} }), []string{"ipv4 inbound"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := pod(t, dual...)
			load(t, ns, tt.live.MustRuleset())
			report, err := validate.Run(context.Background(), validate.Options{Redirect: tt.want, Namespace: ns, Timeout: 10 * time.Second})
			var missing *validate.MissingError
			require.ErrorAs(t, err, &missing, "%s", report)
			assert.ElementsMatch(t, tt.missing, names(report, "missing"), "%s", report)
		})
	}
}

// TestPortTaken is validation in a pod whose proxy runs already.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	w := netnstest.NewWorld(t, netnstest.Options{})
	r := config(dns)
	load(t, w.Pod, r.MustRuleset())
	report, err := validate.Run(context.Background(), validate.Options{Redirect: r, Namespace: w.Pod, Timeout: 10 * time.Second})
	require.NoError(t, err, "%s", report)
	assert.Len(t, names(report, "works"), 8, "%s", report)
}

func TestIPv6Off(t *testing.T) {
	t.Parallel()
	ns := pod(t, v4...)
	require.NoError(t, ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	}))
	r := config()
	load(t, ns, r.MustRuleset())
	report, err := validate.Run(context.Background(), validate.Options{Redirect: r, Namespace: ns})
	require.NoError(t, err, "%s", report)
	assert.Equal(t, []string{"ipv6 family"}, names(report, "untested"))
}

func TestCannotBegin(t *testing.T) {
	t.Parallel()
	_, err := validate.Run(context.Background(), validate.Options{})
	var field *redirect.FieldError
	require.ErrorAs(t, err, &field, "the zero Redirect is no plan")

	gone, err := netnsexec.Current()
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	_, err = validate.Run(context.Background(), validate.Options{Redirect: config(), Namespace: gone})
	require.ErrorIs(t, err, os.ErrClosed)
}

// binary is a program that validates as whoever it is run as, for tests of
// users without capabilities. TestMain is it, when asked.
func TestMain(m *testing.M) {
	if os.Getenv("MESHCNI_VALIDATE_AS") == "" {
		os.Exit(m.Run())
	}
	var change []func(*redirect.Redirect)
	if os.Getenv("MESHCNI_VALIDATE_DNS") != "" {
		change = append(change, dns)
	}
	if os.Getenv("MESHCNI_VALIDATE_PASS") != "" {
		change = append(change, pass)
	}
	if os.Getenv("MESHCNI_VALIDATE_GROUP") != "" {
		change = append(change, group)
	}
	report, err := validate.Run(context.Background(), validate.Options{Redirect: config(change...), Timeout: 10 * time.Second})
	_, _ = os.Stdout.WriteString(report.String())
	if err != nil {
		_, _ = os.Stdout.WriteString(err.Error())
		os.Exit(1)
	}
}

// TestWithoutCapabilities runs as the proxy and as an application, neither of
// which can do anything but open sockets.
func TestWithoutCapabilities(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	binary := filepath.Join(copyFor(t, self), "validate")
	tests := map[string]struct {
		dns      string
		group    string
		pass     string
		uid, gid uint32
		addrs    []string
		live     redirect.Redirect
		works    []string
		missing  []string
		exit     int
		alsoSaid string
	}{
		"proxy":                {uid: 1337, gid: 1337, addrs: dual, live: config(), works: []string{"ipv4 inbound", "ipv6 inbound"}},
		"proxy, only lo":       {uid: 1337, gid: 1337, live: config(), works: []string{"ipv4 inbound"}},
		"proxy, dns":           {uid: 1337, gid: 1337, dns: "1", addrs: dual, live: config(dns), works: []string{"ipv4 inbound", "ipv4 dns-exemption", "ipv6 inbound", "ipv6 dns-exemption"}},
		"proxy, dns missing":   {uid: 1337, gid: 1337, dns: "1", addrs: dual, live: config(), works: []string{"ipv4 inbound", "ipv6 inbound"}, missing: []string{"ipv4 dns-exemption", "ipv6 dns-exemption"}, exit: 1},
		"application":          {uid: 1000, gid: 1000, addrs: dual, live: config(), works: []string{"ipv4 outbound", "ipv6 outbound"}},
		"application, dns":     {uid: 1000, gid: 1000, dns: "1", addrs: dual, live: config(dns), works: []string{"ipv4 outbound", "ipv4 dns-udp", "ipv4 dns-tcp", "ipv6 outbound", "ipv6 dns-udp", "ipv6 dns-tcp"}},
		"application, only lo": {uid: 1000, gid: 1000, live: config(), exit: 1, alsoSaid: "nothing could be tested: what user 1000/1000 sends shows nothing: run it as the proxy's user (1337/65534)"},
		"proxy, calls within the pod pass": {uid: 1337, gid: 1337, pass: "1", addrs: dual, live: config(pass), exit: 1,
			alsoSaid: "nothing could be tested: what user 1337/1337, the proxy's own, sends shows nothing: run it as a user who is not the proxy's, such as the application's"},
		"proxy, calls within the pod pass, dns": {uid: 1337, gid: 1337, pass: "1", dns: "1", addrs: dual, live: config(pass, dns), exit: 1,
			alsoSaid: "run it as a user who is not the proxy's"},
		"proxy, calls within the pod pass, only lo": {uid: 1337, gid: 1337, pass: "1", live: config(pass), exit: 1,
			alsoSaid: "nobody else's would: the namespace has no route out of it"},
		"application, calls within the pod pass, dns": {uid: 1000, gid: 1000, pass: "1", dns: "1", addrs: dual, live: config(pass, dns), works: []string{"ipv4 outbound", "ipv6 outbound"}},
		"proxy's group":            {uid: 1000, gid: 1337, group: "1", addrs: dual, live: config(group), exit: 1, alsoSaid: validate.ErrNothingTested.Error()},
		"a group, not the proxy's": {uid: 1000, gid: 1337, addrs: dual, live: config(), works: []string{"ipv4 outbound", "ipv6 outbound"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := pod(t, tt.addrs...)
			load(t, ns, tt.live.MustRuleset())
			cmd := exec.Command(binary)
			cmd.Env = []string{"MESHCNI_VALIDATE_AS=1", "MESHCNI_VALIDATE_DNS=" + tt.dns, "MESHCNI_VALIDATE_GROUP=" + tt.group, "MESHCNI_VALIDATE_PASS=" + tt.pass}
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.gid}}
			_ = ns.Run(cmd)
			assert.Equal(t, tt.exit, cmd.ProcessState.ExitCode(), "%s", &said)
			for _, s := range tt.works {
				assert.Contains(t, said.String(), "works    "+s+":")
			}
			for _, s := range tt.missing {
				assert.Contains(t, said.String(), "missing  "+s+":")
			}
			assert.Equal(t, len(tt.works), bytes.Count(said.Bytes(), []byte("works ")), "%s", &said)
			assert.Contains(t, said.String(), tt.alsoSaid)
		})
	}
}

// TestResolverOfTheProxy: look-ups that go to another address are tried where this program can listen there.
func TestResolverOfTheProxy(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"127.0.0.1:8600": "works    ipv4 dns-udp: udp to 127.0.0.6:53 as 0/0: arrived at port 8600\n",
		"10.96.0.10:53":  "untested ipv4 dns-udp: look-ups go to 10.96.0.10:53, where this program cannot listen\n",
	} {
		ns := pod(t, dual...)
		expected := config(v4only, resolver(to))
		_, err := validate.Run(t.Context(), validate.Options{Redirect: expected, Namespace: ns, Timeout: time.Second})
		var missing *validate.MissingError
		require.ErrorAs(t, err, &missing, "without rules")
		load(t, ns, expected.MustRuleset())
		report, err := validate.Run(t.Context(), validate.Options{Redirect: expected, Namespace: ns})
		require.NoError(t, err, "%s", report)
		assert.Contains(t, report.String(), want)
	}
}

// copyFor puts the program where every user can run it.
func copyFor(t *testing.T, program string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "meshcni-validate-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // for other users
	b, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "validate"), b, 0o755)) //nolint:gosec // for other users
	return dir
}
