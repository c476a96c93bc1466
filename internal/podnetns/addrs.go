package podnetns

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// addresses returns the global addresses in the process's network namespace, without entering it.
func addresses(proc fs.FS, pid int) ([]netip.Addr, error) {
	dir := path.Join(strconv.Itoa(pid), "net")
	trie, err := fs.ReadFile(proc, dir+"/fib_trie")
	if err != nil {
		return nil, fmt.Errorf("read addresses of process %d: %w", pid, err)
	}
	has := localIPv4(string(trie))
	v6, err := fs.ReadFile(proc, dir+"/if_inet6")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The kernel has no IPv6.
	case err != nil:
		return nil, fmt.Errorf("read addresses of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(v6)) {
		// "fd00…05 02 40 00 80 eth0": address, index, prefix length, scope, flags.
		digits, _, _ := strings.Cut(line, " ")
		if b, err := hex.DecodeString(digits); err == nil {
			if a, ok := netip.AddrFromSlice(b); ok && a.IsGlobalUnicast() {
				has = append(has, a)
			}
		}
	}
	return has, nil
}

// localIPv4 returns the addresses with local host routes in a dump of the routing trie (net/ipv4/fib_trie.c,
// fib_trie_seq_show): a leaf's address follows "|--", and "/32 host LOCAL" is on a line below it. Tables repeat leaves.
func localIPv4(trie string) []netip.Addr {
	var addrs []netip.Addr
	var leaf netip.Addr
	for line := range strings.Lines(trie) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "|-- "); ok {
			leaf, _ = netip.ParseAddr(text)
			continue
		}
		if strings.HasPrefix(line, "/32 host LOCAL") && leaf.IsGlobalUnicast() && !slices.Contains(addrs, leaf) {
			addrs = append(addrs, leaf)
		}
	}
	return addrs
}

// gone reports whether a process's file could not be read because the process has ended: ENOENT before the open, ESRCH
// after it.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}
