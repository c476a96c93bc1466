package redirect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// MaxRules is the most rules of both families that a [Redirect] may render to. A pod's
// author writes the lists, which multiply: each virtual interface has a rule for each
// included prefix. A root process outside the pod's cgroup applies the rules.
//
// The bound is measured (see docs/security.md): each backend applies 10000 rules of the most expensive kind in some tenths of a second and
// about 40 MiB. A long list is one rule of it; what is in such sets is at most 100000 prefixes and ports, counted once for each rule that has
// them. The rules that iptables has in their place have the same bound, which [ruleset.Ruleset.Iptables] keeps.
const MaxRules = chains.MaxRules

// mostBlamed bounds the products that a [LimitError] names: more would not help.
const mostBlamed = 5

// LimitError says that a [Redirect] would render to more than [MaxRules] rules, or that its rules would have more than 100000 prefixes and
// ports in sets. Get at it with errors.As(err, &limitError).
type LimitError struct {
	// Rules counts the rules that both families would have; [math.MaxInt] if an int cannot hold it.
	Rules int
	// Elements counts what their sets would have, each for every rule that has it, if that is what is too much; else it is 0.
	Elements int
	// Products lists those that make the most of them, largest first.
	Products []Product

	iptables error // says so of iptables, which has no sets
}

// Product names fields of a [Redirect] whose lists multiply.
type Product struct {
	// Fields are their paths in JSON, such as "outbound.cidrs".
	Fields []string
	// Rules counts the rules that they make, or the elements of sets.
	Rules int
}

// Error names the bound, and the fields that make the most rules, as in "outbound.cidrs × virtualInterfaces: 2000000".
func (e *LimitError) Error() string {
	blamed := make([]string, len(e.Products))
	for i, p := range e.Products {
		blamed[i] = fmt.Sprintf("%s: %d", strings.Join(p.Fields, " × "), p.Rules)
	}
	if e.iptables != nil {
		return fmt.Sprintf("%v (%s)", e.iptables, strings.Join(blamed, ", "))
	}
	if e.Elements > 0 {
		return fmt.Sprintf("redirect: the rules would have %d prefixes and ports in sets, and %d are the most (%s)", e.Elements, chains.MaxElements, strings.Join(blamed, ", "))
	}
	return fmt.Sprintf("redirect: %d rules would be made, and %d are the most (%s)", e.Rules, MaxRules, strings.Join(blamed, ", "))
}

// Iptables returns a [*LimitError] if iptables, which knows no sets, would have more than [MaxRules] rules: it has one for each prefix. It
// names the lists that make them. nftables takes each Redirect that validates. Without rules, the error is that of [Redirect.Validate].
func (r Redirect) Iptables() error {
	rs, err := r.Ruleset()
	if err != nil {
		return err
	}
	if _, err = rs.Iptables(); err == nil {
		return nil
	}
	total, products, elements := r.count()
	for _, p := range elements { // nearly all of them are rules then
		total = plus(total, p.Rules)
		add(&products, p.Fields, p.Rules)
	}
	return &LimitError{Rules: total, Products: blamed(products, MaxRules), iptables: err}
}

// limit reports more than MaxRules, or more in their sets than there may be.
func (r Redirect) limit() error {
	total, products, elements := r.count()
	inSets := 0
	for _, p := range elements {
		inSets = plus(inSets, p.Rules)
	}
	switch {
	case total > MaxRules:
		return &LimitError{Rules: total, Products: blamed(products, MaxRules)}
	case inSets > chains.MaxElements:
		return &LimitError{Rules: total, Elements: inSets, Products: blamed(elements, chains.MaxElements)}
	}
	return nil
}

// blamed returns the largest products, without which the others would be few enough.
func blamed(products []Product, most int) []Product {
	slices.SortStableFunc(products, func(a, b Product) int { return cmp.Compare(b.Rules, a.Rules) })
	rest, blamed := 0, len(products)
	for blamed > 0 && plus(rest, products[blamed-1].Rules) <= most/2 {
		blamed--
		rest = plus(rest, products[blamed].Rules)
	}
	return products[:min(len(products), max(1, min(blamed, mostBlamed)))]
}

// count returns how many rules [Redirect.Ruleset] would make, the lists that make
// them, and those that are in sets; [math.MaxInt] if an int cannot hold it. It takes time in proportion to the
// lists, whatever they multiply to.
func (r Redirect) count() (total int, products, elements []Product) {
	c := counter{weight: 1}
	for _, f := range ruleset.Families {
		g := generator{Redirect: r, family: f, count: &c}
		if p := g.program(); p != nil {
			total += p.NumRules()
		}
	}
	total -= c.samples
	for _, p := range c.products {
		total = plus(total, p.Rules)
	}
	return total, c.products, c.elements
}

// counter counts the rules that a generator would make. Of each list the generator then makes those of the first
// element only: samples, each of which stands for as many rules as the lists around it multiply to.
type counter struct {
	products []Product
	elements []Product // of sets
	samples  int
	fields   []string // of the lists around
	weight   int
}

// each calls fn, which adds to the rules, for each of the n elements of a field's list.
func (g *generator) each(field string, n int, rules *[]ruleset.Rule, fn func(i int)) {
	c := g.count
	if c == nil {
		*rules = slices.Grow(*rules, n)
		for i := range n {
			fn(i)
		}
		return
	}
	if n == 0 {
		return
	}
	fields, weight, samples, before := c.fields, c.weight, c.samples, len(*rules)
	if !slices.Contains(fields, field) {
		c.fields = append(slices.Clone(fields), field)
		slices.Sort(c.fields)
	}
	c.weight = times(weight, n)
	fn(0)
	made := len(*rules) - before
	if own := made - (c.samples - samples); own > 0 {
		add(&c.products, c.fields, times(own, c.weight))
	}
	c.fields, c.weight, c.samples = fields, weight, samples+made
}

// carries counts what a rule of a field has in sets, for each rule that it stands for.
func (g *generator) carries(field string, r *ruleset.Rule) {
	c, n := g.count, 0
	if c == nil {
		return
	}
	for _, m := range []ruleset.PrefixMatch{r.Src, r.Dst} {
		if len(m.More) > 0 {
			n += 1 + len(m.More)
		}
	}
	for _, m := range []ruleset.PortMatch{r.SrcPorts, r.DstPorts} {
		if slots(m) > chains.MaxPortSlots {
			n += len(m.Ranges)
		}
	}
	if n > 0 {
		fields := c.fields
		if !slices.Contains(fields, field) {
			fields = append(slices.Clone(fields), field)
			slices.Sort(fields)
		}
		add(&c.elements, fields, times(n, c.weight))
	}
}

func add(to *[]Product, fields []string, n int) {
	if i := slices.IndexFunc(*to, func(p Product) bool { return slices.Equal(p.Fields, fields) }); i >= 0 {
		(*to)[i].Rules = plus((*to)[i].Rules, n)
	} else {
		*to = append(*to, Product{fields, n})
	}
}

// plus and times are for numbers that are not negative. They return [math.MaxInt] instead of a larger result.
func plus(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

func times(a, b int) int {
	if a != 0 && b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}
