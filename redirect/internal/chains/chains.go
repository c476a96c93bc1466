// Package chains tells chains by their names: built-in ones, and those that a program
// of ours could have made.
package chains

import (
	"slices"
	"strings"
)

// Builtins are the built-in chains, each the entry of a netfilter hook.
var Builtins = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// MaxRules is the most rules of a pod, of both families: of the rules that nftables has, and of those that iptables has in their place.
const MaxRules = 10_000

// MaxElements is the most elements of sets in a pod's rules, counted for each rule that has them: the prefixes and ranges of ports.
const MaxElements = 100_000

// MaxPortSlots bounds the ports of one multiport match; a range takes two slots. Source: XT_MULTI_PORTS in
// linux/netfilter/xt_multiport.h.
const MaxPortSlots = 15

// IsBuiltin reports whether a chain is built in.
func IsBuiltin(chain string) bool { return slices.Contains(Builtins, chain) }

// maxChainName is the longest name that iptables takes for a chain. Source: XT_EXTENSION_MAXNAMELEN
// in linux/netfilter/x_tables.h, less the terminating zero.
const maxChainName = 28

// Safe reports whether one of our programs could have a chain of the name: A-Z, a-z, 0-9, "_",
// "." and "-", at most 28 bytes. The kernel allows any bytes, even line feeds, and programs do not
// quote names. So other names are never considered ours and never written.
func Safe(name string) bool {
	return name != "" && len(name) <= maxChainName && !strings.ContainsFunc(name, UnsafeRune)
}

// UnsafeRune reports whether no chain of ours has the character in its name.
func UnsafeRune(c rune) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return false
	}
	return c != '_' && c != '.' && c != '-'
}
