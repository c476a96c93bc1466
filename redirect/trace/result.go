package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Verdict is the fate of a packet.
type Verdict string

// The verdicts.
const (
	// Pass: the packet goes where it was sent.
	Pass Verdict = "pass"
	// Redirect: its destination is rewritten, to ToPort on this host or to ToAddr.
	Redirect Verdict = "redirect"
	// TProxy: the transparent socket on ToPort gets it, unchanged.
	TProxy Verdict = "tproxy"
	// Drop: it is discarded.
	Drop Verdict = "drop"
)

// Result is the result of [Trace].
type Result struct {
	Verdict Verdict `json:"verdict"`
	// ToPort receives a redirected packet; 0 for the other verdicts.
	ToPort uint16 `json:"to_port"`
	// ToAddr is the address that a DNAT rule gave; otherwise it is invalid.
	ToAddr netip.Addr `json:"to_addr,omitzero"`
	// Path lists the rules that matched, in order, such as "nat/OUTPUT:1" for the first rule of that chain. Never nil.
	// For a packet that leaves by lo it has the rules on the way out and those on the way in.
	Path []string `json:"path"`
	// Reason quotes the comments of the deciding rules.
	Reason string `json:"reason"`
	// Zone is the connection's conntrack zone, Mark the packet's last mark and ConnMark its connection's.
	Zone     uint16 `json:"zone,omitempty"`
	Mark     uint32 `json:"mark,omitempty"`
	ConnMark uint32 `json:"conn_mark,omitempty"`
	// Steps is Path with more detail.
	Steps []Step `json:"-"`

	family ruleset.Family
}

// Step is one rule that matched.
type Step struct {
	Table ruleset.Table
	Chain string
	// Position is the rule's place in its chain, from 1.
	Position int
	Rule     ruleset.Rule
}

// String returns for example "nat/ISTIO_OUTPUT:3".
func (s Step) String() string {
	return s.Table.String() + "/" + s.Chain + ":" + strconv.Itoa(s.Position)
}

// String returns the verdict with its port, such as "redirect 15001".
func (r Result) String() string {
	switch {
	case r.ToAddr.IsValid():
		return string(r.Verdict) + " " + netip.AddrPortFrom(r.ToAddr, r.ToPort).String()
	case r.ToPort != 0:
		return string(r.Verdict) + " " + strconv.Itoa(int(r.ToPort))
	}
	return string(r.Verdict)
}

// Explain returns the result for people: the verdict and the reason on one
// line, then each rule that matched with its text and comment.
func (r Result) Explain() string {
	var b strings.Builder
	p := visible.To(&b)
	p.Printf("%s: %s\n", r, r.Reason)
	for _, s := range r.Steps {
		p.Printf("  %-28s %s", s, s.Rule.Text(r.family))
		if s.Rule.Comment != "" {
			p.Printf("   # %s", s.Rule.Comment)
		}
		p.Printf("\n")
	}
	return b.String()
}

// result turns what the walk found into words.
func (w *walker) result() Result {
	r := Result{Verdict: Pass, Path: make([]string, len(w.steps)), Steps: w.steps, Mark: w.mark, family: w.program.Family}
	for i, s := range w.steps {
		r.Path[i] = s.String()
	}
	if w.tracked {
		r.Zone, r.ConnMark = w.zone, w.conn.mark
	}
	switch {
	case w.dropped != "":
		r.Verdict, r.Reason = Drop, w.dropped
	case w.tproxy != nil:
		r.Verdict, r.ToPort = TProxy, w.tproxy.to.Port()
		r.Reason = fmt.Sprintf("%s: handed to the transparent listener on port %d", w.tproxy.why, r.ToPort)
	case w.nat != nil:
		r.Verdict, r.ToPort, r.ToAddr = Redirect, w.nat.to.Port(), w.nat.to.Addr()
		to := "port " + strconv.Itoa(int(r.ToPort))
		if r.ToAddr.IsValid() {
			to = w.nat.to.String()
		}
		r.Reason = w.nat.why + ": redirected to " + to
	case len(w.passes) > 0:
		r.Reason = strings.Join(slices.Compact(w.passes), "; ") + ": passes"
	case w.connState == ruleset.StateEstablished:
		r.Reason = "its connection was decided by an earlier packet: passes"
	default:
		r.Reason = "no rule is for it: passes"
	}
	return r
}
