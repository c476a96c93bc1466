//go:build linux

package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// lockWait bounds the wait of the legacy variant's programs for the host's xtables lock: kube-proxy holds it for
// seconds where there are many services.
const lockWait = "5"

// run runs a program of iptables in the host's namespace. It must not be in a sandbox: the lock is the host's.
func (s *Set) run(ctx context.Context, variant ruleset.Backend, f ruleset.Family, verb, input string, args ...string) (string, error) {
	o := apply.Options{Path: s.o.Path, Root: s.o.Root}
	cmd, err := o.Command(ctx, variant, f, verb, append([]string{"-w", lockWait}, args...)...)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := s.o.NetNS.Run(cmd); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return "", &programError{filepath.Base(cmd.Path), strings.TrimSpace(stderr.String()), err}
	}
	return stdout.String(), nil
}

// programError holds the output of a program that failed.
type programError struct {
	program, text string
	err           error
}

func (e *programError) Error() string {
	return fmt.Sprintf("%s: %v: %.2000s", e.program, e.err, e.text)
}
func (e *programError) Unwrap() error { return e.err }

// using lists the variants that have a predecessor's chain in one of its tables of any family. Asking iptables-legacy would make its
// tables, so it is asked only where they are.
func (s *Set) using(ctx context.Context, p predecessor) (found []ruleset.Backend, err error) {
	inNFT := false
	err = s.session(ctx, func(c *nfnetlink.Conn) error {
		for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
			for table := range p.jumps {
				err := c.Request(unix.NFT_MSG_GETCHAIN, 0, family, func(w *nfnetlink.Writer) {
					w.Text(unix.NFTA_CHAIN_TABLE, table)
					w.Text(unix.NFTA_CHAIN_NAME, p.chain)
				}, func(nfnetlink.Message) { inNFT = true })
				if err != nil {
					return fmt.Errorf("look for chain %s: %w", p.chain, err)
				}
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, apply.ErrNoBackend) {
		return nil, err
	}
	if inNFT {
		found = append(found, ruleset.BackendIptablesNFT)
	}
	for _, f := range ruleset.Families {
		for table := range p.jumps {
			has, err := s.legacyHas(f, table)
			if err == nil && has {
				has, err = s.hasChain(ctx, ruleset.BackendIptablesLegacy, f, table, p.chain)
			}
			if err != nil {
				return nil, err
			}
			if has {
				return append(found, ruleset.BackendIptablesLegacy), nil
			}
		}
	}
	return found, nil
}

// legacyTables are the files with the names of the legacy variant's tables.
var legacyTables = map[ruleset.Family]string{
	ruleset.IPv4: "/proc/thread-self/net/ip_tables_names", ruleset.IPv6: "/proc/thread-self/net/ip6_tables_names",
}

func (s *Set) legacyHas(f ruleset.Family, table string) (has bool, err error) {
	err = s.o.NetNS.Do(func() error {
		names, err := os.ReadFile(legacyTables[f])
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		has = slices.Contains(strings.Fields(string(names)), table)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	return has, nil
}

// hasChain asks iptables for a chain. A host without the program cannot have made the chain with it.
func (s *Set) hasChain(ctx context.Context, variant ruleset.Backend, f ruleset.Family, table, chain string) (bool, error) {
	_, err := s.run(ctx, variant, f, "", "", "-t", table, "-S", chain)
	var failed *programError
	var exit *exec.ExitError
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, apply.ErrNoBackend):
		return false, nil
	case errors.As(err, &failed) && errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(failed.text, "No chain/target/match by that name"):
		return false, nil
	}
	return false, err
}

// added returns the rules of iptables -S.
func added(text string) (rules []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "-A ") {
			rules = append(rules, line)
		}
	}
	return rules
}

func count(rules []string, rule string) (n int) {
	for _, r := range rules {
		if r == rule {
			n++
		}
	}
	return n
}

// dropFrom removes a predecessor's chain of one variant, which may be in some of the tables only.
func (s *Set) dropFrom(ctx context.Context, variant ruleset.Backend, p predecessor) error {
	for _, f := range ruleset.Families {
		var text strings.Builder
		for table, from := range p.jumps {
			has, err := s.hasTable(ctx, variant, f, table)
			if err != nil {
				return err
			}
			if !has {
				continue
			}
			live, err := s.run(ctx, variant, f, "", "", "-t", table, "-S", from)
			if err != nil {
				return err
			}
			// The chain is made, or emptied, and then goes: no question whether it is there.
			text.WriteString("*" + table + "\n:" + p.chain + " - [0:0]\n")
			text.WriteString(strings.Repeat("-D "+from+" -j "+p.chain+"\n", count(added(live), "-A "+from+" -j "+p.chain)))
			text.WriteString("-X " + p.chain + "\nCOMMIT\n")
		}
		if text.Len() == 0 {
			continue
		}
		if _, err := s.run(ctx, variant, f, "-restore", text.String(), "--noflush"); err != nil {
			return fmt.Errorf("remove %s rules of chain %s: %w", f, p.chain, err)
		}
		if variant == ruleset.BackendIptablesNFT {
			if err := s.dropEmpty(ctx, f, slices.Collect(maps.Keys(p.jumps))); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasTable reports whether the variant has the table, so that looking into it does not make it.
func (s *Set) hasTable(ctx context.Context, variant ruleset.Backend, f ruleset.Family, name string) (has bool, err error) {
	if variant == ruleset.BackendIptablesLegacy {
		return s.legacyHas(f, name)
	}
	err = s.session(ctx, func(c *nfnetlink.Conn) error {
		return c.Request(unix.NFT_MSG_GETTABLE, 0, header[f].proto, func(w *nfnetlink.Writer) {
			w.Text(unix.NFTA_TABLE_NAME, name)
		}, func(nfnetlink.Message) { has = true })
	})
	if err != nil {
		return false, fmt.Errorf("look for table %s of %s: %w", name, variant, err)
	}
	return has, nil
}

// dropEmpty removes tables of iptables-nft that hold nothing but built-in chains that accept. iptables makes them again
// when it needs them.
func (s *Set) dropEmpty(ctx context.Context, f ruleset.Family, tables []string) error {
	return s.session(ctx, func(c *nfnetlink.Conn) error {
		var generation uint32
		err := c.Request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) { generation = m.Attr(unix.NFTA_GEN_ID).U32() })
		if err != nil {
			return err
		}
		chains, used := map[string]bool{}, map[string]bool{}
		err = c.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, header[f].proto, nil, func(m nfnetlink.Message) {
			t := m.Text(unix.NFTA_CHAIN_TABLE)
			chains[t] = true
			used[t] = used[t] || m.Attr(unix.NFTA_CHAIN_HOOK).Data == nil || m.Attr(unix.NFTA_CHAIN_POLICY).U32() != nfAccept
		})
		for _, list := range []struct{ msg, table uint16 }{{unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE}, {unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE}} {
			for _, name := range tables {
				if err == nil && chains[name] && !used[name] {
					err = c.Request(list.msg, unix.NLM_F_DUMP, header[f].proto, func(w *nfnetlink.Writer) { w.Text(list.table, name) },
						func(m nfnetlink.Message) { used[m.Text(list.table)] = true })
				}
			}
		}
		if err != nil {
			return fmt.Errorf("look for empty tables: %w", err)
		}
		empty := slices.DeleteFunc(slices.Clone(tables), func(name string) bool { return !chains[name] || used[name] })
		if len(empty) == 0 {
			return nil
		}
		w := nfnetlink.Writer{Seq: c.Seq + 1}
		w.BeginBatch(generation)
		for _, name := range empty {
			table(&w, unix.NFT_MSG_DELTABLE, header[f].proto, name)
		}
		last := w.EndBatch()
		if err := c.Commit(w.B, last); err != nil {
			return fmt.Errorf("delete empty tables %s: %w", strings.Join(empty, ", "), err)
		}
		return nil
	})
}
