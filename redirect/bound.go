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

// mostBlamed is how many products a [LimitError] names: more would not help.
const mostBlamed = 5

// fixedRules bounds the rules of a family that no list multiplies; see TestCount.
const fixedRules = 40

// LimitError says that a [Redirect] would render to more than [MaxRules] rules. Get
// at it with errors.As(err, &limitError).
type LimitError struct {
	// Rules estimates the rules of both families, at most some tens too high; [math.MaxInt] if an int cannot hold it.
	Rules int
	// Products are the lists that make the most rules, largest first.
	Products []Product
}

// Product names fields of a [Redirect] whose lists multiply.
type Product struct {
	// Fields are their paths in JSON, such as "outbound.cidrs".
	Fields []string
	// Rules is how many rules they make.
	Rules int
}

// String returns for example "outbound.cidrs × virtualInterfaces: 2000000".
func (p Product) String() string {
	return fmt.Sprintf("%s: %d", strings.Join(p.Fields, " × "), p.Rules)
}

// Error names the fields and the bound.
func (e *LimitError) Error() string {
	return fmt.Sprintf("redirect: %d rules would be made, and %d are the most (%s)", e.Rules, MaxRules, e.Blame())
}

// Blame names the fields that make the most rules, and how many.
func (e *LimitError) Blame() string {
	parts := make([]string, len(e.Products))
	for i, p := range e.Products {
		parts[i] = p.String()
	}
	return strings.Join(parts, ", ")
}

// Count estimates how many rules [Redirect.Ruleset] would make: never too few, and at most some tens too many;
// [math.MaxInt] if an int cannot hold it. It takes time in proportion to the lists, whatever they multiply to.
func (r Redirect) Count() int {
	total, _ := r.count()
	return total
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
	return &LimitError{Rules: total, Products: products[:max(1, min(blamed, mostBlamed))]}
}

// count adds up both families.
func (r Redirect) count() (total int, products []Product) {
	for _, f := range ruleset.Families {
		c := counter{generator: generator{Redirect: r, family: f}, products: products}
		switch r.Family(f) {
		case FamilyCapture:
			c.capture()
		case FamilyDrop:
			c.refuse()
		case FamilyPass:
			continue
		}
		total, products = plus(total, fixedRules), c.products
	}
	for _, p := range products {
		total = plus(total, p.Rules)
	}
	return total, products
}

// counter counts the rules that generator makes of each list. TestCount compares the two.
type counter struct {
	generator
	products []Product
}

func (c *counter) add(rules int, fields ...string) {
	same := func(p Product) bool { return slices.Equal(p.Fields, fields) }
	if i := slices.IndexFunc(c.products, same); i >= 0 {
		c.products[i].Rules = plus(c.products[i].Rules, rules)
	} else if rules > 0 {
		c.products = append(c.products, Product{fields, rules})
	}
}

func (c *counter) capture() {
	tproxy, zones := c.Mode == ModeTProxy, c.hasZones()
	owner, network, server := 1, 1, 0
	if c.Loopback == LoopbackHairpin {
		owner++
		if !c.Outbound.CIDRs.HasLoopback() {
			owner++
		}
		if tproxy {
			owner++
		}
	}
	if zones {
		owner += 2
		server += 2
		if !c.byMark() {
			network++
		}
	}
	if c.DNS.Enabled() && len(c.DNS.To) == 0 {
		network++
	}
	if _, ok := c.dnsTarget(); ok {
		server += len(c.dnsProtos())
		if c.DNS.UDPOnly && !c.DNS.TCPOutbound {
			server++
		}
	}
	c.owners(owner)
	c.add(times(server, c.prefixes(c.DNS.Servers)), "dns.servers")
	for i := range c.VirtualNetworks {
		if c.hasNetwork(&c.VirtualNetworks[i]) {
			c.add(network, "virtualNetworks")
		}
	}
	c.add(times(len(c.VirtualInterfaces), c.prefixes(c.Outbound.CIDRs)), "outbound.cidrs", "virtualInterfaces")
	c.add(len(c.VirtualInterfaces), "virtualInterfaces")
	c.interfaces()
	if tproxy {
		c.interfaces() // in mangle too
	}
	if !c.Inbound.Ports.Empty() {
		c.inbound()
	}
	if tproxy {
		c.add(chunks(c.Inbound.Ports), "inbound.ports") // known connections
	}
	c.outbound()
}

func (c *counter) refuse() {
	c.owners(1)
	c.interfaces()
	c.inbound()
	c.outbound()
}

func (c *counter) owners(each int) {
	c.add(times(each, len(c.Proxy.UIDs)), "proxy.uids")
	c.add(times(each, len(c.Proxy.GIDs)), "proxy.gids")
}

// interfaces are left alone both ways.
func (c *counter) interfaces() { c.add(times(2, len(c.ExcludeInterfaces)), "excludeInterfaces") }

func (c *counter) inbound() {
	c.add(c.prefixes(c.Inbound.ExcludeSources), "inbound.excludeSources")
	if c.Inbound.Ports.All() {
		c.add(chunks(c.Inbound.ExcludePorts), "inbound.excludePorts")
	}
	c.add(chunks(c.Inbound.Ports), "inbound.ports")
}

func (c *counter) outbound() {
	o := &c.Outbound
	c.add(times(2, chunks(o.ExcludePorts)), "outbound.excludePorts") // TCP and UDP
	exclude := 0
	for i := range o.Exclude {
		e := &o.Exclude[i]
		exclude = plus(exclude, times(times(c.prefixes(e.CIDRs), max(1, len(e.UIDs))), chunks(e.Ports)))
	}
	c.add(exclude, "outbound.exclude")
	c.add(len(o.ExcludeOwnerGroups), "outbound.excludeOwnerGroups")
	c.add(c.prefixes(o.ExcludeCIDRs), "outbound.excludeCIDRs")
	c.add(chunks(o.Ports), "outbound.ports")
	c.add(c.prefixes(o.CIDRs), "outbound.cidrs")
}

// prefixes is how many rules there are for a set in the counter's family.
func (c *counter) prefixes(s PrefixSet) int {
	if s.All() {
		return 1
	}
	return len(s.Family(c.family))
}

// chunks is how many rules there are for a set of ports.
func chunks(s PortSet) int {
	if s.All() {
		return 1
	}
	return len(ruleset.ChunkPorts(s.ranges))
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
