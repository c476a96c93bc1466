//go:build linux

package apply

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// legacyInfo is the size of a table of the legacy variant.
type legacyInfo struct {
	hooks   int // built-in chains
	entries int // of the table's blob
	size    int // of the blob, in bytes
}

// tableSize is a table's rules, and its chains that are not built in.
type tableSize struct{ rules, chains int }

func (t *tableSize) add(chain string, rules int) {
	t.rules += rules
	if !chains.IsBuiltin(chain) {
		t.chains++
	}
}

// entriesOf counts the entries of a table of the size: besides the rules, a policy for each built-in chain, a head and
// an end for each other, and the end of the table (net/ipv4/netfilter/ip_tables.c).
func (i legacyInfo) entriesOf(t tableSize) int { return t.rules + i.hooks + 2*t.chains + 1 }

func (s *session) legacyInfo(f ruleset.Family, table string) (legacyInfo, error) {
	return readLegacyInfo(s.ns.Socket, f, table)
}

// readLegacyInfo asks the kernel about a registered table. To ask for another
// would register it. The socket decides about the namespace.
func readLegacyInfo(socket func(domain, typ, proto int) (int, error), f ruleset.Family, table string) (legacyInfo, error) {
	fail := func(err error) (legacyInfo, error) {
		return legacyInfo{}, fmt.Errorf("ask for the size of table %s: %w", table, err)
	}
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == ruleset.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(fd) }()
	// struct ipt_getinfo: a name of 32 bytes, the mask of hooks, two lists of five offsets, the number of entries,
	// their size. Source: IPT_SO_GET_INFO, which IPv6 has too, in linux/netfilter_ipv4/ip_tables.h.
	const getInfo, hooksAt, entriesAt, sizeAt, length = 64, 32, 76, 80, 84
	var info [length]byte
	copy(info[:hooksAt-1], table)
	size := uint32(length)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return fail(errno)
	}
	return legacyInfo{
		hooks:   bits.OnesCount32(binary.NativeEndian.Uint32(info[hooksAt:])),
		entries: int(binary.NativeEndian.Uint32(info[entriesAt:])),
		size:    int(binary.NativeEndian.Uint32(info[sizeAt:])),
	}, nil
}

// measureLegacy fails where the family's tables are larger than is read, before a program reads them.
func (s *session) measureLegacy(f ruleset.Family) error {
	left, rules := listLimit, 0
	for _, table := range s.host.legacy[f] {
		info, err := s.legacyInfo(f, table)
		if err != nil {
			return err
		}
		if left -= info.size; left < 0 {
			return fmt.Errorf("%w: table %s and those before it are over %d bytes", nfnetlink.ErrLong, table, listLimit)
		}
		rules += info.entries
	}
	return few(rules)
}

// legacyAgrees compares what iptables-legacy-save printed with the size of each table.
func (s *session) legacyAgrees(f ruleset.Family, live ruleset.LiveChains) error {
	sizes := map[string]tableSize{}
	for _, c := range live {
		size := sizes[c.Table]
		size.add(c.Name, len(c.Rules))
		sizes[c.Table] = size
	}
	for table, size := range sizes {
		info, err := s.legacyInfo(f, table)
		if err != nil {
			return err
		}
		if want := info.entriesOf(size); info.entries != want {
			return fmt.Errorf("table %s has %d entries, printed are %d: %w", table, info.entries, want, errText)
		}
	}
	return nil
}

// verifyNew makes sure that a program has come into a namespace that had no tables of the legacy variant.
func (s *session) verifyNew(want *ruleset.FamilyRuleset) error {
	var tables map[ruleset.Family][]string
	err := s.ns.Do(func() (err error) {
		tables, err = registeredTables()
		return err
	})
	if err != nil {
		return err
	}
	sizes := map[ruleset.Table]tableSize{}
	for _, c := range want.Chains {
		size := sizes[c.Table]
		size.add(c.Name, len(c.Rules))
		sizes[c.Table] = size
	}
	for _, table := range ruleset.Tables {
		size := sizes[table]
		if size == (tableSize{}) {
			continue
		}
		if !slices.Contains(tables[want.Family], table.String()) {
			return fmt.Errorf("%w: there is no table %s", errNothing, table)
		}
		info, err := s.legacyInfo(want.Family, table.String())
		if err != nil {
			return err
		}
		if n := info.entriesOf(size); info.entries < n {
			return fmt.Errorf("%w: table %s has %d entries, not %d", errNothing, table, info.entries, n)
		}
	}
	return nil
}
