package redirect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

const (
	maxOwnChains = 64
	maxOwnRules  = 1000
	maxOwners    = 16
	ownComment   = "rule of the mesh's own"
)

// The suffixes of a chain of the mesh's own at a hook, after the hook's name; see [Redirect.Own].
const (
	first = "_FIRST"
	last  = "_LAST"
)

// ownHooks are those at which chains of the mesh's own may stand, with the tables that have them.
var ownHooks = map[string][]ruleset.Table{
	ruleset.Prerouting: {ruleset.Raw, ruleset.Mangle, ruleset.NAT}, ruleset.Input: {ruleset.Mangle, ruleset.NAT}, ruleset.Forward: {ruleset.Mangle},
	ruleset.Output: {ruleset.Raw, ruleset.Mangle, ruleset.NAT}, ruleset.Postrouting: {ruleset.Mangle, ruleset.NAT},
}

// ownHook returns the hook that a chain of the mesh's own stands at, by its name without the prefix. Empty: it stands at none.
func ownHook(suffix string) string {
	for _, hook := range chains.Builtins {
		if rest, ok := strings.CutPrefix(suffix, hook); ok && (rest == "" || rest == first || rest == last) {
			return hook
		}
	}
	return ""
}

// family returns the family of the only packets that a rule is about; 0: both.
func ownFamily(r *ruleset.Rule) ruleset.Family {
	for _, a := range []netip.Addr{r.Src.Prefix.Addr(), r.Dst.Prefix.Addr(), r.Target.To.Addr()} {
		if a.IsValid() {
			return ruleset.FamilyOf(a)
		}
	}
	return 0
}

// ownChains returns the chains of the mesh's own in a table, with the rules of the family. A chain without any is none, and nothing jumps to it.
func (r Redirect) ownChains(f ruleset.Family, t ruleset.Table) (own []ruleset.Chain) {
	for _, c := range r.Own {
		if c.Table != t {
			continue
		}
		c.Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(r ruleset.Rule) bool { only := ownFamily(&r); return only != 0 && only != f })
		for i := range c.Rules {
			if c.Rules[i].Comment == "" {
				c.Rules[i].Comment = ownComment
			}
		}
		own = append(own, c)
	}
	for range own { // each time one more chain may become empty
		empty := map[string]bool{}
		own = slices.DeleteFunc(own, func(c ruleset.Chain) bool { empty[c.Name] = len(c.Rules) == 0; return len(c.Rules) == 0 })
		for i := range own {
			own[i].Rules = slices.DeleteFunc(own[i].Rules, func(r ruleset.Rule) bool { return r.Target.Action == ruleset.ActionJump && empty[r.Target.Chain] })
		}
	}
	return own
}

// addOwn adds the chains of the mesh's own to the program.
func (g *generator) addOwn() {
	if len(g.Own) == 0 {
		return
	}
	if c := g.count; c != nil {
		n := 0
		for i := range g.Own {
			n = plus(n, len(g.Own[i].Rules)+1)
			for j := range g.Own[i].Rules {
				g.carries("own", &g.Own[i].Rules[j])
			}
		}
		c.products = append(c.products, Product{[]string{"own"}, n})
		return
	}
	var all []ruleset.Chain
	for _, t := range ruleset.Tables {
		at := slices.IndexFunc(g.chains, func(c ruleset.Chain) bool { return c.Table == t })
		var made []ruleset.Chain
		if at >= 0 {
			made = slices.DeleteFunc(slices.Clone(g.chains), func(c ruleset.Chain) bool { return c.Table != t })
		}
		if own := g.ownChains(g.family, t); len(own) > 0 {
			made = g.compose(t, made, own)
		}
		all = append(all, made...)
	}
	g.chains = all
}

// compose joins the chains of a table: built-in chains jump to those of the mesh's own before and after ours, and where the mesh has a
// chain of the name of ours, that counts.
func (g *generator) compose(t ruleset.Table, made, own []ruleset.Chain) []ruleset.Chain {
	find := func(in []ruleset.Chain, name string) *ruleset.Chain {
		if i := slices.IndexFunc(in, func(c ruleset.Chain) bool { return c.Name == name }); i >= 0 {
			return &in[i]
		}
		return nil
	}
	var builtin, rest []ruleset.Chain
	for _, hook := range chains.Builtins {
		var rules []ruleset.Rule
		enter := func(suffix string) {
			if find(own, g.Names.ChainPrefix+suffix) != nil {
				r := g.jump(suffix)
				r.Comment = "rules of the mesh's own"
				rules = append(rules, r)
			}
		}
		enter(hook + first)
		if instead := find(own, g.Names.ChainPrefix+hook); instead != nil {
			enter(hook)
		} else if c := find(made, hook); c != nil {
			rules = append(rules, c.Rules...)
		}
		enter(hook + last)
		if len(rules) > 0 {
			builtin = append(builtin, ruleset.Chain{Table: t, Name: hook, Rules: rules})
		}
	}
	for _, c := range made {
		if !chains.IsBuiltin(c.Name) && find(own, c.Name) == nil {
			rest = append(rest, c)
		}
	}
	rest = append(rest, own...)
	for i, suffix := range []string{chainInRedirect, chainRedirect} {
		port := []uint16{g.Proxy.InboundPort, g.Proxy.OutboundPort}[i]
		if t == ruleset.NAT && port != 0 && find(rest, g.Names.ChainPrefix+suffix) == nil && slices.ContainsFunc(own, func(c ruleset.Chain) bool {
			return slices.ContainsFunc(c.Rules, func(r ruleset.Rule) bool { return r.Target == g.to(suffix) })
		}) {
			rest = append(rest, ruleset.Chain{Table: t, Name: g.Names.ChainPrefix + suffix, Rules: []ruleset.Rule{toPort(port)}})
		}
	}
	reached := map[string]bool{}
	walk := builtin
	for len(walk) > 0 {
		var next []ruleset.Chain
		for _, c := range walk {
			for i := range c.Rules {
				to := c.Rules[i].Target
				if to.Action != ruleset.ActionJump || reached[to.Chain] {
					continue
				}
				reached[to.Chain] = true
				if c := find(rest, to.Chain); c != nil {
					next = append(next, *c)
				}
			}
		}
		walk = next
	}
	return append(builtin, slices.DeleteFunc(rest, func(c ruleset.Chain) bool { return !reached[c.Name] })...)
}

// own checks the chains of the mesh's own.
func (v *validator) own(r Redirect) {
	const field = "own"
	rules := 0
	for i := range r.Own {
		rules = plus(rules, len(r.Own[i].Rules))
	}
	v.check(len(r.Own) <= maxOwnChains, field, "%d chains; at most %d are allowed", len(r.Own), maxOwnChains)
	v.check(rules <= maxOwnRules, field, "%d rules; at most %d are allowed", rules, maxOwnRules)
	if len(r.Own) == 0 || len(r.Own) > maxOwnChains || rules > maxOwnRules {
		return
	}
	before := len(v.errs)
	type key struct {
		table ruleset.Table
		name  string
	}
	seen := map[key]bool{}
	each(v, r.Own, func(i int, c ruleset.Chain) {
		at := fmt.Sprintf("%s[%d]", field, i)
		suffix, prefixed := strings.CutPrefix(c.Name, r.Names.ChainPrefix)
		v.check(prefixed && suffix != "" && chains.Safe(c.Name), at, "chain %q is not %s and at most %d more of letters, digits, '_', '.' and '-'", c.Name, r.Names.ChainPrefix, 28-len(r.Names.ChainPrefix))
		v.check(c.Table == ruleset.Raw || c.Table == ruleset.Mangle || c.Table == ruleset.NAT, at, "table %s is not raw, mangle or nat", c.Table)
		v.check(!seen[key{c.Table, c.Name}], at, "chain %s is there twice in table %s", c.Name, c.Table)
		hook := ownHook(suffix)
		v.check(hook == "" || slices.Contains(ownHooks[hook], c.Table), at, "chain %s: table %s has no %s", c.Name, c.Table, hook)
		v.check(!slices.Contains([]string{chainInbound, chainRedirect, chainInRedirect, chainDNS, chainDivert, chainTProxy}, suffix), at, "chain %s is one of the Redirect's", c.Name)
		v.check(len(c.Rules) > 0, at, "chain %s has no rule", c.Name)
		seen[key{c.Table, c.Name}] = true
	})
	if len(v.errs) > before {
		return
	}
	for _, f := range ruleset.Families {
		v.ownProgram(r, f)
	}
	for _, hook := range chains.Builtins {
		v.ownAt(r, hook)
	}
	for i, c := range r.Own {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.check(slices.ContainsFunc(chains.Builtins, func(hook string) bool { return r.ownReach(c.Table, hook)[c.Name] }), at,
			"nothing leads to chain %s: it stands at no hook (%sOUTPUT_FIRST, say), and no such chain jumps to it", c.Name, r.Names.ChainPrefix)
		for n := range c.Rules {
			rule := &c.Rules[n]
			v.check(len(rule.Comment) <= maxComment && !strings.ContainsFunc(rule.Comment, func(c rune) bool { return c < ' ' || c > '~' || c == '"' }), at,
				"rule %d: its comment is not at most %d printable characters", n+1, maxComment)
			v.check(slots(rule.SrcPorts) <= chains.MaxPortSlots && slots(rule.DstPorts) <= chains.MaxPortSlots, at, "rule %d: its ports take more than the %d slots of a match", n+1, chains.MaxPortSlots)
			v.check(len(rule.Owner) <= maxOwners, at, "rule %d: %d owners; at most %d fit", n+1, len(rule.Owner), maxOwners)
			v.check(readBack(*rule), at, "rule %d: the kernel would not show it as it is: a mark has bits outside its mask, ports are all there are, or a field is set that its target does not use", n+1)
			v.check(rule.Target.Action != ruleset.ActionNoTrack || c.Table == ruleset.Raw, at, "rule %d: target notrack is for table raw", n+1)
		}
	}
}

// readBack reports whether a rule is read as it is written: else what is live would always differ from it.
func readBack(r ruleset.Rule) bool {
	r.Src.More, r.Dst.More = nil, nil // which the text may cut, and which are as they are read: the ruleset's own check has them in order
	f := cmp.Or(ownFamily(&r), ruleset.IPv4)
	again, err := ruleset.ParseRule(f, r.Text(f))
	return err == nil && again.Equal(r)
}

func slots(m ruleset.PortMatch) (n int) {
	for _, r := range m.Ranges {
		n += min(2, 1+int(r.Last-r.First))
	}
	return n
}

// ownProgram has the ruleset's own check look at the chains of the mesh's own.
func (v *validator) ownProgram(r Redirect, f ruleset.Family) {
	g := generator{Redirect: r, family: f}
	g.addOwn()
	if len(g.chains) == 0 {
		return
	}
	var rs ruleset.Ruleset
	rs.Set(&ruleset.FamilyRuleset{Family: f, Owner: r.Names.Owner(), Chains: g.chains})
	if err := rs.Validate(); err != nil {
		v.check(false, "own", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// ownReach returns the names of the chains of the mesh's own in a table that packets at a hook may come to.
func (r Redirect) ownReach(t ruleset.Table, hook string) map[string]bool {
	reached := map[string]bool{}
	for range r.Own { // the longest way has each chain once
		for _, c := range r.Own {
			at := c.Table == t && (reached[c.Name] || ownHook(strings.TrimPrefix(c.Name, r.Names.ChainPrefix)) == hook)
			if !at {
				continue
			}
			reached[c.Name] = true
			for i := range c.Rules {
				if c.Rules[i].Target.Action == ruleset.ActionJump {
					reached[c.Rules[i].Target.Chain] = true
				}
			}
		}
	}
	return reached
}

// ownAt refuses what the kernel does not take of a rule that packets at the hook may come to.
func (v *validator) ownAt(r Redirect, hook string) {
	for i, c := range r.Own {
		if !r.ownReach(c.Table, hook)[c.Name] {
			continue
		}
		for n := range c.Rules {
			rule, wrong := &c.Rules[n], ""
			sent, came := hook == ruleset.Output || hook == ruleset.Postrouting, hook == ruleset.Prerouting || hook == ruleset.Input
			to := rule.Target
			redirects := to.Action == ruleset.ActionRedirect || to.Action == ruleset.ActionDNAT ||
				to.Action == ruleset.ActionJump && (to.Chain == r.Names.ChainPrefix+chainRedirect || to.Chain == r.Names.ChainPrefix+chainInRedirect)
			switch {
			case !sent && len(rule.Owner) > 0:
				wrong = "an owner, whom nothing that arrives has"
			case came && !rule.Out.IsZero():
				wrong = "the interface that a packet leaves by, which is not known yet"
			case sent && !rule.In.IsZero():
				wrong = "the interface that a packet came in by, and it came in by none"
			case hook != ruleset.Prerouting && to.Action == ruleset.ActionTProxy:
				wrong = "its target tproxy, which is for PREROUTING"
			case hook != ruleset.Prerouting && hook != ruleset.Output && redirects:
				wrong = "a target that changes the destination, which is for PREROUTING and OUTPUT"
			}
			v.check(wrong == "", fmt.Sprintf("own[%d]", i), "rule %d: at %s it has %s", n+1, hook, wrong)
		}
	}
}

func cloneChains(list []ruleset.Chain) []ruleset.Chain {
	list = slices.Clone(list)
	for i := range list {
		list[i].Rules = slices.Clone(list[i].Rules)
		for n := range list[i].Rules {
			r := &list[i].Rules[n]
			r.Src.More, r.Dst.More = slices.Clone(r.Src.More), slices.Clone(r.Dst.More)
			r.SrcPorts.Ranges, r.DstPorts.Ranges, r.Owner = slices.Clone(r.SrcPorts.Ranges), slices.Clone(r.DstPorts.Ranges), slices.Clone(r.Owner)
		}
	}
	return list
}
