package validate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// DefaultProbePort is a port of the pod on which nobody listens. Istio reserves it
// for this (istio.io/latest/docs/ops/deployment/application-requirements).
const DefaultProbePort uint16 = 15002

// defaultTimeout bounds a whole [Run]. A redirected connection takes less than
// a millisecond; the rest is for a node that is starting many pods.
const defaultTimeout = 5 * time.Second

// Options are for [Run]. Redirect is required.
type Options struct {
	// Redirect is the redirection that is expected.
	Redirect redirect.Redirect
	// ProbePort is the port of trial connections that are no DNS queries; 0 is 15002, on which nobody listens.
	ProbePort uint16
	// Timeout bounds all trials together; 0 is 5 s.
	Timeout time.Duration
	// Namespace is the network namespace to test, such as a *netnsexec.NetNS; nil is the process's own.
	Namespace interface{ Do(fn func() error) error }
}

// Identity is the owner of a socket.
type Identity struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// String returns for example "1337/1337".
func (id Identity) String() string { return fmt.Sprintf("%d/%d", id.UID, id.GID) }

// The aspects of redirection that are tried, each by itself.
const (
	inbound      = "inbound"
	outbound     = "outbound"
	dnsOverUDP   = "dns-udp"
	dnsOverTCP   = "dns-tcp"
	dnsExemption = "dns-exemption"
	wholeFamily  = "family"
)

// The ends of a trial.
const (
	works    = "works"
	missing  = "missing"
	untested = "untested"
)

// Step is one trial and its outcome.
type Step struct {
	Family ruleset.Family `json:"family"`
	// Aspect is what is tried: the proxy's port for connections ("inbound", reached from inside, or "outbound") or for DNS queries
	// ("dns-udp", "dns-tcp"); "dns-exemption", that the proxy's DNS queries are left alone, which is all that the proxy's user can see of
	// DNS capture; or "family", for all of a family that is not tried.
	Aspect string `json:"aspect"`
	// Proto, Destination and As are what was sent, and by whom; zero if nothing was.
	Proto       string         `json:"proto,omitempty"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	As          *Identity      `json:"as,omitempty"`
	// WantPort is the proxy's port that has to receive it; 0 if it has to be left alone.
	WantPort uint16 `json:"wantPort,omitempty"`
	// Outcome is "works" if what was sent arrived where the rules send it, else "missing"; or "untested" if nothing that this process can
	// send would tell, or the family is not captured or not there.
	Outcome string `json:"outcome"`
	// Detail describes the trial, or the reason that there was none.
	Detail string `json:"detail"`
	// Rule is the rule that decides, such as "nat/ISTIO_OUTPUT:4". If Outcome is
	// "missing", it is the one that is not in force.
	Rule string `json:"rule,omitempty"`
}

// Tried reports whether the step says anything.
func (s Step) Tried() bool { return s.Outcome != untested }

// Works reports whether what was sent arrived where the rules send it.
func (s Step) Works() bool { return s.Outcome == works }

// String returns the step in one line.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %s %s: ", s.Outcome, s.Family, s.Aspect)
	if s.As != nil {
		fmt.Fprintf(&b, "%s to %s as %s: ", s.Proto, s.Destination, s.As)
	}
	b.WriteString(s.Detail)
	if s.Outcome == missing && s.Rule != "" {
		fmt.Fprintf(&b, " (wanted: %s)", s.Rule)
	}
	return b.String()
}

// Report lists the trials, in order.
type Report struct {
	Steps []Step `json:"steps"`
}

// String returns a line for each step.
func (r Report) String() string {
	var b strings.Builder
	for _, s := range r.Steps {
		b.WriteString(s.String() + "\n")
	}
	return b.String()
}

// ErrNothingTested says that this process can send nothing that would show whether redirection works: it runs as a user whose connections pass,
// or the namespace has no address to send to. The error that Run returns says who could. Check with errors.Is(err, validate.ErrNothingTested).
var ErrNothingTested = errors.New("nothing could be tested")

// MissingError says that redirection, or a part of it, is missing. Get at it
// with errors.As(err, &missing), where missing is a *validate.MissingError.
type MissingError struct {
	// Steps are those that failed; at least one.
	Steps []Step
}

// Error names what is missing in one line.
func (e *MissingError) Error() string {
	parts := make([]string, len(e.Steps))
	for i, s := range e.Steps {
		parts[i] = s.Family.String() + " " + s.Aspect
	}
	return "redirection is missing: " + strings.Join(parts, ", ")
}

// FromOutside waits for a connection from outside the pod to Options.ProbePort, such as a kubelet's probe makes, which has to arrive at
// the proxy's inbound port. That port has to be free. The error is a [*MissingError] if there was none at the timeout. It does not serve
// redirection by TPROXY.
func FromOutside(ctx context.Context, o Options) (Report, error) {
	o = o.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	port := o.Redirect.Proxy.InboundPort
	step, err := accept(ctx, o.in(), port, o.ProbePort)
	if errors.Is(err, context.DeadlineExceeded) {
		step = Step{Aspect: inbound, WantPort: port, Outcome: missing, Detail: fmt.Sprintf("no connection from outside to port %d arrived at port %d within %s", o.ProbePort, port, o.Timeout)}
		return Report{[]Step{step}}, &MissingError{[]Step{step}}
	}
	if err != nil {
		return Report{}, fmt.Errorf("wait for a connection from outside: %w", err)
	}
	return Report{[]Step{step}}, nil
}

func (o Options) withDefaults() Options {
	if o.ProbePort == 0 {
		o.ProbePort = DefaultProbePort
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return o
}

// in runs a function in the namespace to test.
func (o Options) in() func(func() error) error {
	if o.Namespace != nil {
		return o.Namespace.Do
	}
	return func(fn func() error) error { return fn() }
}

// Run makes the trials that this process can make and reports how they ended. The error is a [*MissingError] if a
// trial failed, or [ErrNothingTested] if there was none; the report is then complete. Any other error says that a trial
// could not be made. Validate returns when every trial has ended, or at the timeout, or when ctx is done.
func Run(ctx context.Context, o Options) (Report, error) {
	rs, err := o.Redirect.Ruleset()
	if err != nil {
		return Report{}, fmt.Errorf("validate redirection: %w", err)
	}
	o = o.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	p := &planner{redirect: o.Redirect, rules: rs, probe: o.ProbePort}
	trials, err := try(ctx, o.in(), p)
	var report Report
	var failed []Step
	for _, t := range trials {
		report.Steps = append(report.Steps, t.Step)
		if t.Outcome == missing {
			failed = append(failed, t.Step)
		}
	}
	if err != nil {
		return report, fmt.Errorf("validate redirection: %w", err)
	}
	switch {
	case len(failed) > 0:
		return report, &MissingError{failed}
	case !slices.ContainsFunc(report.Steps, func(s Step) bool { return s.Outcome == works }):
		who := ""
		err := o.in()(func() error { who = p.elsewhere(); return nil }) // by that namespace's routes
		return report, errors.Join(fmt.Errorf("%w: %s", ErrNothingTested, who), err)
	}
	return report, nil
}
