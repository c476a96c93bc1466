package redirect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// MaxRules is the most rules of both families that a [Redirect] may render to. A pod's
// author writes the lists, which multiply: each virtual interface has a rule for each
// included prefix. A root process outside the pod's cgroup applies the rules.
//
// The bound is measured (see docs/security.md): long lists in use have about a thousand prefixes, and each backend
// applies 10000 rules of the most expensive kind in some tenths of a second and about 40 MiB.
const MaxRules = 10_000

// mostBlamed bounds the products that a [LimitError] names: more would not help.
const mostBlamed = 5

// LimitError says that a [Redirect] would render to more than [MaxRules] rules. Get
// at it with errors.As(err, &limitError).
type LimitError struct {
	// Rules counts the rules that both families would have; [math.MaxInt] if an int cannot hold it.
	Rules int
	// Products lists those that make the most rules, largest first.
	Products []Product
}

// Product names fields of a [Redirect] whose lists multiply.
type Product struct {
	// Fields are their paths in JSON, such as "outbound.cidrs".
	Fields []string
	// Rules counts the rules that they make.
	Rules int
}

// Error names the bound, and the fields that make the most rules, as in "outbound.cidrs × virtualInterfaces: 2000000".
func (e *LimitError) Error() string {
	blamed := make([]string, len(e.Products))
	for i, p := range e.Products {
		blamed[i] = fmt.Sprintf("%s: %d", strings.Join(p.Fields, " × "), p.Rules)
	}
	return fmt.Sprintf("redirect: %d rules would be made, and %d are the most (%s)", e.Rules, MaxRules, strings.Join(blamed, ", "))
}

// limit reports more than MaxRules. It blames the largest products, without which the others would be few enough.
func (r Redirect) limit() error {
	total, products := r.count()
	if total <= MaxRules {
		return nil
	}
	slices.SortStableFunc(products, func(a, b Product) int { return cmp.Compare(b.Rules, a.Rules) })
	rest, blamed := 0, len(products)
	for blamed > 0 && plus(rest, products[blamed-1].Rules) <= MaxRules/2 {
		blamed--
		rest = plus(rest, products[blamed].Rules)
	}
	return &LimitError{Rules: total, Products: products[:min(len(products), max(1, min(blamed, mostBlamed)))]}
}

// count returns how many rules [Redirect.Ruleset] would make, and the lists that make
// them; [math.MaxInt] if an int cannot hold it. It takes time in proportion to the
// lists, whatever they multiply to.
func (r Redirect) count() (total int, products []Product) {
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
	return total, c.products
}

// counter counts the rules that a generator would make. Of each list the generator then makes those of the first
// element only: samples, each of which stands for as many rules as the lists around it multiply to.
type counter struct {
	products []Product
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
		c.add(times(own, c.weight))
	}
	c.fields, c.weight, c.samples = fields, weight, samples+made
}

func (c *counter) add(rules int) {
	same := func(p Product) bool { return slices.Equal(p.Fields, c.fields) }
	if i := slices.IndexFunc(c.products, same); i >= 0 {
		c.products[i].Rules = plus(c.products[i].Rules, rules)
	} else {
		c.products = append(c.products, Product{c.fields, rules})
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
