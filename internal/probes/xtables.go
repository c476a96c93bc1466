//go:build linux

package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

var variants = []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}

// jump is a built-in chain from which a chain of ours is jumped to first.
type jump struct {
	family      ruleset.Family
	table, from string
	// rule is the one rule of our chain.
	rule string
}

func (x *xtables) jumps(f ruleset.Family) []jump {
	source := x.o.source(f)
	return []jump{
		{f, "raw", "PREROUTING", fmt.Sprintf("-A %s -s %s/%d -j DROP", chainName, source, f.Bits())},
		{f, "nat", "POSTROUTING", fmt.Sprintf("-A %s -p tcp -m owner --socket-exists -m set --match-set %s dst -j SNAT --to-source %s",
			chainName, ipset(f), source)},
	}
}

func (x *xtables) allJumps() (all []jump) {
	for _, f := range ruleset.Families {
		all = append(all, x.jumps(f)...)
	}
	return all
}

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

// find finds out which variant to use: the one that is asked for, else the one that has our chain, else the one that
// package apply would take. What another variant has of ours goes once the rules are in this one.
func (x *xtables) find(ctx context.Context) error {
	if x.variant != "" {
		return nil
	}
	o := apply.Options{Backend: x.o.Backend, Path: x.o.Path, Root: x.o.Root, Runner: x.o.NetNS}
	if !slices.Contains(variants, o.Backend) {
		o.Backend = ruleset.BackendIptables
	}
	if o.Backend == ruleset.BackendIptables {
		used, err := x.using(ctx, chainName)
		if err != nil {
			return err
		}
		if len(used) > 0 {
			x.variant = used[0]
			return nil
		}
	}
	b, err := apply.Choose(ctx, x.o.NetNS, o)
	if err != nil {
		return err
	}
	x.variant = b.Name()
	return nil
}

// tables are those that have rules of ours.
var tables = []string{"nat", "raw"}

// using lists the variants that have a chain in one of the tables of any family. Asking iptables-legacy would make its tables,
// so it is asked only where they are.
func (s *Set) using(ctx context.Context, chain string) (found []ruleset.Backend, err error) {
	inNFT := false
	err = s.session(ctx, func(c *nfnetlink.Conn) error {
		for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
			for _, table := range tables {
				err := c.Request(unix.NFT_MSG_GETCHAIN, 0, family, func(w *nfnetlink.Writer) {
					w.Text(unix.NFTA_CHAIN_TABLE, table)
					w.Text(unix.NFTA_CHAIN_NAME, chain)
				}, func(nfnetlink.Message) { inNFT = true })
				if err != nil {
					return fmt.Errorf("look for chain %s: %w", chain, err)
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
		for _, table := range tables {
			has, err := s.legacyHas(f, table)
			if err == nil && has {
				has, err = s.hasChain(ctx, ruleset.BackendIptablesLegacy, f, table, chain)
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

// flaw is a jump that is not as wanted, and how often it is there.
type flaw struct {
	jump
	times int
}

// damage reads the rules of a family and returns what is not as wanted.
func (x *xtables) damage(ctx context.Context, f ruleset.Family) (flaws []flaw, err error) {
	for _, j := range x.jumps(f) {
		text, err := x.run(ctx, x.variant, f, "", "", "-t", j.table, "-S", j.from)
		if err != nil {
			return nil, err
		}
		rules := added(text)
		ours := "-A " + j.from + " -j " + chainName
		times := count(rules, ours)
		intact := times == 1 && rules[0] == ours
		if times > 0 { // so the chain is there
			text, err := x.run(ctx, x.variant, f, "", "", "-t", j.table, "-S", chainName)
			if err != nil {
				return nil, err
			}
			intact = intact && slices.Equal(added(text), []string{j.rule})
		}
		if !intact {
			flaws = append(flaws, flaw{j, times})
		}
	}
	return flaws, nil
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

// repair makes the rules as wanted, in one transaction a table, and then removes those of the other variant.
func (x *xtables) repair(ctx context.Context) (repaired bool, err error) {
	for _, f := range x.families {
		flaws, err := x.damage(ctx, f)
		if err != nil {
			return repaired, err
		}
		if len(flaws) == 0 {
			continue
		}
		var text strings.Builder
		for _, j := range flaws {
			text.WriteString("*" + j.table + "\n:" + chainName + " - [0:0]\n" + j.rule + "\n")
			text.WriteString(strings.Repeat("-D "+j.from+" -j "+chainName+"\n", j.times))
			text.WriteString("-I " + j.from + " 1 -j " + chainName + "\nCOMMIT\n")
		}
		if _, err := x.run(ctx, x.variant, f, "-restore", text.String(), "--noflush"); err != nil {
			return repaired, fmt.Errorf("write %s rules: %w", f, err)
		}
		repaired = true
	}
	used, err := x.using(ctx, chainName)
	if err != nil {
		return repaired, err
	}
	for _, other := range used {
		if other != x.variant {
			if err := x.dropFrom(ctx, other, chainName, x.allJumps()); err != nil {
				return repaired, err
			}
			repaired = true
		}
	}
	return repaired, nil
}
