//go:build linux

package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// IptablesTraces describes the rules that iptables may hold for the owner in the namespace, such as
// "iptables-nft, chain ISTIO_OUTPUT", and returns "" if there are none. It starts no process, so it also works where
// iptables is not installed. Any table of the legacy variant counts: the kernel does not list its chains.
func IptablesTraces(ctx context.Context, ns Namespace, owner ruleset.Owner) (string, error) {
	var legacy []string
	err := ns.Do(func() error {
		tables, err := legacyTables()
		legacy = slices.Concat(tables[ruleset.IPv4], tables[ruleset.IPv6])
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look for rules of iptables: %w", err)
	}
	if len(legacy) > 0 {
		return "iptables-legacy, tables " + strings.Join(legacy, " "), nil
	}
	var chains chainRules
	err = NewNFTables(ns).session(ctx, func(s *nftSession) (err error) {
		chains, err = s.countRules(unix.NFPROTO_UNSPEC)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look for rules of iptables: %w", err)
	}
	var own []string
	for c := range chains {
		if (c.family == unix.NFPROTO_IPV4 || c.family == unix.NFPROTO_IPV6) && owner.OwnsChain(c.name) {
			own = append(own, c.name)
		}
	}
	if len(own) == 0 {
		return "", nil
	}
	return "iptables-nft, chain " + slices.Min(own), nil
}
