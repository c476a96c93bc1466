//go:build linux

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// host holds the facts about a namespace that need no process to find.
type host struct {
	// ipv6 says whether the namespace has the protocol, disabled or not.
	ipv6 bool
	// legacy are the tables of xtables that hold anything, by family.
	legacy map[ruleset.Family][]string
	// nft are all nftables tables, and asleep those of them that are dormant.
	nft, asleep []nftTable
	// noNFT is set where the kernel has no nftables, so that nft is empty.
	noNFT bool
}

// inet6 is a file that only a kernel without IPv6 lacks: sysctl disable_ipv6 does not remove it. A variable for tests.
var inet6 = "/proc/thread-self/net/if_inet6"

func look(ns Namespace) (host, error) {
	var h host
	err := ns.Do(func() error {
		// Taking IPv6 for absent would leave its connections outside the mesh.
		var err error
		if h.ipv6, err = hasIPv6(); err != nil {
			return err
		}
		if h.legacy, err = legacyTables(); err != nil {
			return err
		}
		// Taking an error for no tables would leave an earlier program beside ours.
		h.nft, h.asleep, err = listTables()
		if h.noNFT = errors.Is(err, ErrNoBackend); h.noNFT {
			return nil
		}
		return err
	})
	return h, err
}

// ofAnotherUser reports whether the network namespace belongs to another user
// namespace than this process. Without a file descriptor it is taken not to.
func ofAnotherUser(ns Namespace) (bool, error) {
	file, ok := ns.(interface{ Fd() int })
	if !ok || file.Fd() < 0 {
		return false, nil
	}
	var own, owner unix.Stat_t
	if err := unix.Stat("/proc/self/ns/user", &own); errors.Is(err, unix.ENOENT) {
		return false, nil // a kernel without user namespaces
	} else if err != nil {
		return false, fmt.Errorf("look at own user namespace: %w", err)
	}
	fd, err := unix.IoctlRetInt(file.Fd(), unix.NS_GET_USERNS)
	if err != nil {
		// EPERM: it belongs to a user namespace above ours. Kernels before 4.9 cannot tell.
		return errors.Is(err, unix.EPERM), nil
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Fstat(fd, &owner); err != nil {
		return false, fmt.Errorf("look at the user namespace of a network namespace: %w", err)
	}
	return own.Dev != owner.Dev || own.Ino != owner.Ino, nil
}

// xtablesNames are the files with the names of xtables' tables. A variable for tests.
var xtablesNames = map[ruleset.Family]string{
	ruleset.IPv4: "/proc/thread-self/net/ip_tables_names", ruleset.IPv6: "/proc/thread-self/net/ip6_tables_names",
}

// legacyTables lists the xtables tables of the calling thread's namespace that hold
// rules or chains. An empty table tells nothing, because tables are never removed.
func legacyTables() (map[ruleset.Family][]string, error) {
	tables, err := registeredTables()
	for f := range tables {
		tables[f] = slices.DeleteFunc(tables[f], func(table string) bool {
			info, ierr := readLegacyInfo(unix.Socket, f, table)
			err = errors.Join(err, ierr)
			return ierr == nil && info.entries == info.entriesOf(tableSize{})
		})
	}
	return tables, err
}

// registeredTables lists all xtables tables of the calling thread's namespace. A
// table is registered by its first use there.
func registeredTables() (map[ruleset.Family][]string, error) {
	tables := map[ruleset.Family][]string{}
	for f, file := range xtablesNames {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list xtables tables: %w", err)
		}
		tables[f] = strings.Fields(string(text))
	}
	return tables, nil
}

// usesNFT reports whether iptables-nft has a table in the family.
func (h host) usesNFT(f ruleset.Family) bool {
	return slices.ContainsFunc(h.nft, func(t nftTable) bool { return t.isIptables() && t.family == nfProto(f) })
}

// uses reports whether the variant has tables in the family, so that an earlier program may be there.
func (h host) uses(variant ruleset.Backend, f ruleset.Family) bool {
	if variant == ruleset.BackendIptablesNFT {
		return h.usesNFT(f)
	}
	return len(h.legacy[f]) > 0
}

// has reports whether the namespace has the family.
func (h host) has(f ruleset.Family) bool { return f == ruleset.IPv4 || h.ipv6 }

// families lists the families that the namespace has.
func (h host) families() []ruleset.Family {
	if h.ipv6 {
		return ruleset.Families[:]
	}
	return ruleset.Families[:1]
}
