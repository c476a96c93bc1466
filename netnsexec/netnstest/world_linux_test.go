package netnstest_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/streamtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// restore gives rules to one of iptables' restore programs, in w's pod.
func restore(t *testing.T, w *netnstest.World, program, rules string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "--noflush")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(rules), &out, &out
	require.NoError(t, w.Pod.Sandbox().Run(cmd), "%s: %s", program, &out)
}

func TestNew(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	again, err := netnsexec.Open(ns.Path())
	require.NoError(t, err)
	assert.Equal(t, ns.ID(), again.ID())
	require.NoError(t, again.Close())
	require.NoError(t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		// ENETUNREACH if lo were down.
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}); err != unix.ECONNREFUSED {
			return fmt.Errorf("lo is not up: %w", err)
		}
		return nil
	}))
}

func TestNewCleansUp(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	var path string
	t.Run("inner", func(t *testing.T) { path = netnstest.New(t).Path() })
	_, err := netnsexec.Open(path)
	require.ErrorIs(t, err, netnsexec.ErrGone)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), path)
}

// Without rules every packet goes where it is sent: what the reference did for a pod that it does not select.
func TestWorldWithoutRules(t *testing.T) {
	t.Parallel()
	w := netnstest.NewWorld(t, netnstest.Options{})
	want := recording(t)["sel-no-status"].Fates
	require.Len(t, want, 191)
	for range 3 { // the world does not wear out
		assert.Equal(t, want, w.Run(netnstest.Probes(netnstest.Plan{})))
	}
}

func TestWorldsSideBySide(t *testing.T) {
	t.Parallel()
	want := recording(t)["sel-no-status"].Fates
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, want, netnstest.NewWorld(t, netnstest.Options{}).Run(netnstest.Probes(netnstest.Plan{})))
		})
	}
}

// A minimal program of redirection: all TCP but the proxy's own, and inbound.
const redirect = `*nat
-A PREROUTING -i eth0 -p tcp -j REDIRECT --to-ports 15006
-A OUTPUT -m owner --uid-owner 1337 -j RETURN
-A OUTPUT -m owner --gid-owner 1337 -j RETURN
-A OUTPUT -o lo -j RETURN
-A OUTPUT -p tcp -j REDIRECT --to-ports 15001
-A OUTPUT -p udp --dport 53 -j REDIRECT --to-ports 15053
COMMIT
`

func TestWorldRedirect(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			v4, v6 := "iptables-"+variant+"-restore", "ip6tables-"+variant+"-restore"
			netnstest.Require(t, netnstest.Root, netnstest.Binary(v4), netnstest.Binary(v6))
			w := netnstest.NewWorld(t, netnstest.Options{})
			restore(t, w, v4, redirect)
			restore(t, w, v6, redirect)
			fates := w.Run(netnstest.Probes(netnstest.Plan{}))
			for name, want := range map[string]string{
				"pod tcp 1000/1000 -> 10.96.5.5:80":                   "proxy:15001 orig=10.96.5.5:80",
				"pod tcp 1000/1000 -> 192.168.77.1:6379":              "proxy:15001 orig=192.168.77.1:6379",
				"pod tcp 0/0 -> [2001:db8::10]:443":                   "proxy:15001 orig=[2001:db8::10]:443",
				"pod tcp 1337/1000 -> 10.96.5.5:80":                   "out:80 orig=10.96.5.5:80",
				"pod tcp 1000/1337 -> [fd00:96::5]:80":                "out:80 orig=[fd00:96::5]:80",
				"pod tcp 2000/3000 -> 127.0.0.1:8080":                 "app:8080 orig=127.0.0.1:8080",
				"pod tcp 1337/1337 -> 10.244.1.5:8080 from 127.0.0.6": "app:8080 orig=10.244.1.5:8080",
				"pod udp 1000/1000 -> 10.96.0.10:53":                  "proxy:15053/udp",
				"pod udp 1000/1000 -> [fd00:96::10]:53":               "proxy:15053/udp",
				"pod udp 1337/1337 -> 10.96.0.10:53":                  "out:53/udp",
				"out tcp 0/0 -> 10.244.1.5:8080":                      "proxy:15006 orig=10.244.1.5:8080",
				"out tcp 0/0 -> [fd00:10:244::5]:22":                  "proxy:15006 orig=[fd00:10:244::5]:22",
				"out tcp 0/0 -> 192.168.77.2:8080 from 192.168.77.1":  "app:8080 orig=192.168.77.2:8080",
				"vm tcp 0/0 -> 10.96.5.5:80":                          "out:80 orig=10.96.5.5:80",
			} {
				assert.Equal(t, want, fates[name], name)
			}
		})
	}
}

// The transparent listener takes a connection for another address; and what a server sends has the server's owner.
func TestWorldTPROXY(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("ip"))
	w := netnstest.NewWorld(t, netnstest.Options{ProxyUID: 2000, ProxyGID: 3000, Patience: 3 * time.Second})
	for _, args := range [][]string{
		{"ip", "rule", "add", "fwmark", "1337", "lookup", "133"},
		{"ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "133"},
	} {
		require.NoError(t, w.Pod.Run(exec.CommandContext(t.Context(), args[0], args[1:]...)))
	}
	restore(t, w, "iptables-nft-restore", `*mangle
-A PREROUTING -i eth0 -p tcp --dport 8080 -j TPROXY --on-port 15006 --tproxy-mark 1337
-A OUTPUT -p tcp --sport 9090 -m owner --uid-owner 1000 --gid-owner 1000 -m conntrack --ctstate ESTABLISHED -m length --length 60: -j DROP
-A OUTPUT -p tcp --sport 15021 -m owner ! --uid-owner 2000 -j DROP
-A OUTPUT -p tcp --sport 15021 -m owner ! --gid-owner 3000 -j DROP
COMMIT
`)
	fates := w.Run(netnstest.Probes(netnstest.Plan{}))
	assert.Equal(t, "proxy:15006 orig=10.244.1.5:8080", fates["out tcp 0/0 -> 10.244.1.5:8080"])
	assert.Equal(t, "app:7070 orig=10.244.1.5:7070", fates["out tcp 0/0 -> 10.244.1.5:7070"])
	assert.Equal(t, "timeout", fates["out tcp 0/0 -> 10.244.1.5:9090"], "the application's answer has its owner")
	assert.Equal(t, "proxy:15021 orig=10.244.1.5:15021", fates["out tcp 0/0 -> 10.244.1.5:15021"], "so has the proxy's")
}

func TestFatesOfNoAnswer(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"))
	w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{15001}, ProxyUDP: []uint16{}, Patience: time.Second})
	restore(t, w, "iptables-nft-restore", `*filter
-A OUTPUT -p tcp --dport 3306 -j DROP
-A OUTPUT -p udp --dport 8125 -j DROP
-A OUTPUT -p tcp --dport 443 -j REJECT --reject-with tcp-reset
-A INPUT -p udp --dport 5000 -j DROP
COMMIT
`)
	var probes []netnstest.Probe
	want := map[string]string{
		"pod tcp 0/0 -> 10.96.5.5:81":       "refused",
		"pod udp 0/0 -> 10.96.5.5:81":       "refused",
		"pod udp 0/0 -> 127.0.0.1:15053":    "refused", // no UDP proxy asked for
		"pod tcp 0/0 -> [::1]:15006":        "refused",
		"pod tcp 0/0 -> 198.51.100.10:443":  "refused",
		"pod tcp 0/0 -> 172.16.3.3:3306":    "timeout",
		"pod udp 0/0 -> 198.51.100.10:8125": "timeout",
		"out udp 0/0 -> 10.244.1.5:5000":    "timeout",
		"vm tcp 0/0 -> [2001:db8::10]:443":  "unreachable",
		"out tcp 0/0 -> 10.200.0.1:80":      "unreachable",
		"pod tcp 0/0 -> 10.96.5.5:80":       "out:80 orig=10.96.5.5:80",
		"pod tcp 1/1 -> [::1]:15001":        "proxy:15001 orig=[::1]:15001",
	}
	for name := range want {
		p, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		probes = append(probes, p)
	}
	assert.Equal(t, want, w.Run(probes))

	odd := netnstest.Probe{From: "moon", Proto: "tcp", Dst: netip.MustParseAddrPort("10.96.5.5:80")}
	foreign := netnstest.Probe{From: "pod", Proto: "tcp", Dst: odd.Dst, Src: netip.MustParseAddr("10.9.9.9")}
	fates := w.Run([]netnstest.Probe{odd, foreign})
	assert.Equal(t, `error: no namespace "moon"`, fates[odd.String()])
	assert.Contains(t, fates[foreign.String()], "error: bind 10.9.9.9")
}

func TestStream(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"))
	w := netnstest.NewWorld(t, netnstest.Options{})
	p, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
	require.NoError(t, err)

	replace := strings.Replace(redirect, "*nat\n", "*nat\n-F OUTPUT\n-F PREROUTING\n", 1)
	restore(t, w, "iptables-nft-restore", redirect)

	// In one transaction each, so none gets past the proxy.
	stop := streamtest.Start(t, w, p)
	for range 5 {
		restore(t, w, "iptables-nft-restore", replace)
	}
	counts := stop()
	assert.Equal(t, []string{"proxy:15001 orig=10.96.5.5:80"}, slices.Collect(maps.Keys(counts)))
	assert.Equal(t, counts, stop(), "a second stop says the same")

	stop = streamtest.Start(t, w, p)
	restore(t, w, "iptables-nft-restore", strings.Replace(replace, "15001", "15008", 1))
	assert.Equal(t, []string{"proxy:15001 orig=10.96.5.5:80", "proxy:15008 orig=10.96.5.5:80"},
		slices.Sorted(maps.Keys(stop())), "before and after, and nothing else")

	// The way out is open for a moment, and the stream sees it.
	stop = streamtest.Start(t, w, p)
	restore(t, w, "iptables-nft-restore", "*nat\n-F OUTPUT\nCOMMIT\n")
	assert.Contains(t, stop(), "out:80 orig=10.96.5.5:80")
}

func BenchmarkNewWorld(b *testing.B) {
	for b.Loop() {
		netnstest.NewWorld(b, netnstest.Options{})
	}
}

func BenchmarkRun191(b *testing.B) {
	w := netnstest.NewWorld(b, netnstest.Options{})
	probes := netnstest.Probes(netnstest.Plan{})
	for b.Loop() {
		w.Run(probes)
	}
}

// With Echo a probe is a conversation, and its server says whom it sees.
func TestEcho(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{Echo: true, ProxyMark: 7})
	want := map[string]string{
		"pod tcp 1000/1000 -> 10.96.5.5:80":                             "out:80 orig=10.96.5.5:80 peer=10.244.1.5",
		"pod udp 1000/1000 -> [fd00:96::10]:53":                         "out:53/udp peer=fd00:10:244::5",
		"pod udp 1000/1000 -> 10.244.1.5:15053":                         "proxy:15053/udp peer=10.244.1.5",
		"out tcp 0/0 -> 10.244.1.5:8080 from 198.51.100.10 port 4711":   "app:8080 orig=10.244.1.5:8080 peer=198.51.100.10",
		"pod tcp 1000/1000 -> 10.96.5.5:81":                             "refused",
		"vm udp 0/0 -> 10.96.0.10:53":                                   "out:53/udp peer=10.99.0.2",
		"pod tcp 1337/1337 -> 10.96.5.5:443 from 192.168.77.2 mark 0x5": "out:443 orig=10.96.5.5:443 peer=192.168.77.2",
	}
	var probes []netnstest.Probe
	for name := range want {
		p, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		probes = append(probes, p)
	}
	assert.Equal(t, want, w.Run(probes))
}
