// Package conntracktest fills connection tracking tables for tests.
package conntracktest

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/conntrack"
	"github.com/meshcni/meshcni/internal/kernel/listeners"
	"github.com/meshcni/meshcni/netnsexec"
)

// Fill adds entries to the namespace's connection tracking table, as of long-lived connections, which the kernel evicts for
// no new one: n of them, or as many as the table takes. It can be called once for a namespace.
func Fill(tb testing.TB, ns *netnsexec.NetNS, n int) {
	tb.Helper()
	table, err := conntrack.Open(ns)
	if err != nil {
		tb.Fatalf("fill the connection tracking table: %v", err)
	}
	defer table.Close()
	const established, some, ports = 1, 4096, 60_000 // TCP_ESTABLISHED of net/tcp_states.h
	var connections []listeners.Connection
	for i := range n {
		connections = append(connections, listeners.Connection{
			Local:  netip.AddrPortFrom(netip.MustParseAddr("10.244.1.5"), uint16(1024+i%ports)),
			Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i / ports >> 8), byte(i / ports)}), 443),
			State:  established,
		})
		if len(connections) < some && i < n-1 {
			continue
		}
		if err := table.Adopt(connections); errors.Is(err, unix.ENOMEM) {
			return
		} else if err != nil {
			tb.Fatalf("fill the connection tracking table: %v", err)
		}
		connections = connections[:0]
	}
}
