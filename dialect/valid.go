package dialect

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// InvalidError holds the faults of a [Dialect], whatever the pod. Get it with errors.As(err, &invalidError).
type InvalidError struct {
	// Dialect is its name.
	Dialect string
	// Err joins the faults.
	Err error
}

// Error returns "dialect NAME: " and what is wrong.
func (e *InvalidError) Error() string {
	name := e.Dialect
	if !validName(name) {
		name = truncate.Quote(name)
	}
	return "dialect " + name + ": " + strings.ReplaceAll(e.Err.Error(), "\n", "; ")
}

// Unwrap returns what is wrong.
func (e *InvalidError) Unwrap() error { return e.Err }

func (d Dialect) invalid(err error) error { return &InvalidError{Dialect: d.Name, Err: err} }

var (
	errNoBuild  = errors.New("its Build is nil, so nothing makes rules of a pod")
	errNoFamily = errors.New("redirect: ipv4, ipv6: neither is captured, so all traffic bypasses the mesh")
)

// validName reports whether a name can stand in configurations, flags and metrics.
func validName(name string) bool {
	odd := func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	return name != "" && len(name) <= 63 && !strings.ContainsFunc(name, odd) && name[0] != '-' && name[len(name)-1] != '-'
}

// Validate reports all that would keep the dialect from working, whatever the pod: as an [*InvalidError], or nil. Programs
// call it before they decide about pods, so that a mistake in a dialect is not found at the first pod, and blamed on it.
//
// It calls Build for a pod without settings, which has to give a valid Redirect with the dialect's Names, or an error. If it panics,
// it is called again for a pod with the annotations that the Policy demands. Policy.Decline is asked about such a pod.
func (d Dialect) Validate() error {
	errs := []error{d.Policy.Validate()}
	if !validName(d.Name) {
		errs = append(errs, fmt.Errorf("its Name %s is not 1 to 63 of a to z, 0 to 9 and '-', with no '-' at either end", truncate.Quote(d.Name)))
	}
	errs = append(errs, d.validateBuild()...)
	errs = append(errs, d.validateDecline()...)
	errs = append(errs, d.Check.validate()...)
	if s := d.Sandboxes; s != nil && (s.Key == "" || strings.ContainsAny(s.Key, "=;") || s.Build == nil) {
		errs = append(errs, fmt.Errorf("Sandboxes needs a Build function and a Key without '=' and ';', and has %s", truncate.Quote(s.Key)))
	}
	errs = append(errs, d.validateOwn()...)
	if err := errors.Join(errs...); err != nil {
		return d.invalid(err)
	}
	return nil
}

// validateBuild looks at what Build reads, and at what it makes of a pod without settings.
func (d Dialect) validateBuild() (errs []error) {
	if d.Build == nil {
		return []error{errNoBuild}
	}
	for _, s := range d.look().schemas {
		errs = append(errs, s.Validate())
		errs = append(errs, d.validateKeys(s)...)
	}
	if errors.Join(errs...) != nil {
		return errs // the Redirect is what the defaults say
	}
	r, err := d.example()
	switch {
	case errors.Is(err, errPanic), errors.Is(err, errUndeclared), errors.Is(err, redirect.ErrSchema):
		return append(errs, err)
	case err != nil:
		return errs // what its pods cannot do without is missing here
	}
	errs = append(errs, r.Validate())
	if r.IPv4 != redirect.FamilyCapture && r.IPv6 != redirect.FamilyCapture {
		errs = append(errs, errNoFamily)
	}
	if !sameNames(d.Names, r.Names) {
		errs = append(errs, fmt.Errorf("Names are not those of the rules that Build makes, so these would not be found again: ChainPrefix is %s, and %s in the rules",
			truncate.Quote(d.Names.ChainPrefix), truncate.Quote(r.Names.ChainPrefix)))
	}
	return errs
}

// validateDecline asks Policy.Decline about a pod with what the Policy demands, with its proxy container and by its annotations alone.
func (d Dialect) validateDecline() []error {
	in := d.demanded(d.plain())
	p := selection.Policy{Decline: d.Policy.Decline, ProxyContainers: d.Policy.ProxyContainers}
	if err := p.Decide(in.Pod, nil).Err; err != nil {
		return []error{err}
	}
	if alone, _ := p.RuleOut(in.Pod.Annotations); alone.Err != nil {
		return []error{fmt.Errorf("by a pod's annotations alone, %w", alone.Err)}
	}
	return nil
}

// validateKeys finds settings of a schema that no pod can have, and those that an agent would not keep of a large pod.
func (d Dialect) validateKeys(s redirect.Schema) (errs []error) {
	for _, setting := range s.Settings {
		for _, key := range setting.Keys {
			switch {
			case setting.Source == redirect.FromEnv:
				if len(d.Policy.ProxyContainers) == 0 {
					errs = append(errs, fmt.Errorf("setting %s is a variable of the proxy container, and Policy.ProxyContainers names none", truncate.Quote(key)))
				}
			case key != "" && !validKey(key):
				errs = append(errs, fmt.Errorf("setting %s: no annotation can have this key", truncate.Quote(key)))
			case key != "" && !d.Reads(key):
				errs = append(errs, fmt.Errorf("its Domains have none of setting %s, so an agent would not keep it of a large pod", truncate.Quote(key)))
			}
		}
	}
	return errs
}

// validKey reports whether an annotation can have the key.
func validKey(key string) bool { return len(validation.IsQualifiedName(strings.ToLower(key))) == 0 }

// validateOwn returns an error for each name of the Dialect itself that nothing in a cluster can have.
func (d Dialect) validateOwn() (errs []error) {
	for _, key := range slices.Sorted(maps.Keys(d.Applied)) {
		switch {
		case key == "":
			errs = append(errs, errors.New("its Applied has an annotation without a name"))
		case !validKey(key):
			errs = append(errs, fmt.Errorf("its Applied: no annotation can have the key %s", truncate.Quote(key)))
		}
	}
	for _, domain := range d.Domains {
		if len(validation.IsDNS1123Subdomain(domain)) > 0 {
			errs = append(errs, fmt.Errorf("its Domains: %s is no domain of annotations", truncate.Quote(domain)))
		}
	}
	if name := d.Check.Container; name != "" && len(validation.IsDNS1123Label(name)) > 0 {
		errs = append(errs, fmt.Errorf("its Check: no container can have the name %s", truncate.Quote(name)))
	}
	if p := d.NodeProxy; p != nil && p.StatusAnnotation != "" {
		if !validKey(p.StatusAnnotation) {
			errs = append(errs, fmt.Errorf("NodeProxy: no annotation can have the key %s", truncate.Quote(p.StatusAnnotation)))
		}
		if p.Enrolled == "" || p.Enrolled == p.Pending {
			errs = append(errs, fmt.Errorf("NodeProxy: %s needs two different values, and has %s and %s", p.StatusAnnotation, truncate.Quote(p.Enrolled), truncate.Quote(p.Pending)))
		}
	}
	return errs
}

// errUndeclared is a Build that nobody gives what it reads.
var errUndeclared = errors.New("its Build reads the pod's namespace, and neither NeedsNamespace nor a schema read by Input.Read says so")

// example is the Redirect of a pod without settings. An error may say that there can be no such pod.
func (d Dialect) example() (redirect.Redirect, error) {
	in := d.plain()
	in.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})}
	given := in.Namespace
	if !d.inherits() {
		in.Namespace = nil
	}
	built, err := d.try(in)
	if errors.Is(err, errPanic) { // it may rely on what its Policy demands of a pod
		in = d.demanded(in)
		built, err = d.try(in)
	}
	if errors.Is(err, errPanic) && in.Namespace == nil {
		in.Namespace = given
		if _, with := d.try(in); !errors.Is(with, errPanic) {
			err = fmt.Errorf("%w: %w", errUndeclared, err)
		}
	}
	if errors.Is(err, redirect.ErrNamespaceUnknown) {
		err = fmt.Errorf("%w: %w", errUndeclared, err)
	}
	return built.Redirect, err
}

func sameNames(a, b redirect.Names) bool {
	if !slices.Equal(a.OtherChains, b.OtherChains) || !slices.Equal(a.OtherTables, b.OtherTables) {
		return false
	}
	a.OtherChains, a.OtherTables, b.OtherChains, b.OtherTables = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

func (v Check) validate() (errs []error) {
	if v.Container != "" && (v.ExitCode < 1 || v.ExitCode > 255) {
		errs = append(errs, fmt.Errorf("Check: exit code %d of container %s is not from 1 to 255", v.ExitCode, truncate.Quote(v.Container)))
	}
	seen := map[ruleset.Family]bool{}
	for _, a := range v.ProbeAddrs {
		if !a.IsValid() || seen[ruleset.FamilyOf(a)] {
			errs = append(errs, fmt.Errorf("Check: probe address %s is none, or a second one of its family", truncate.Quote(a.String())))
			continue
		}
		seen[ruleset.FamilyOf(a)] = true
	}
	return errs
}

// Validate reports all that is wrong with each of the dialects, joined, and names that two have. errors.As finds an
// [*InvalidError] for each dialect. To know none is an error too: no pod would be selected.
func Validate(known []Dialect) error {
	if len(known) == 0 {
		return errNoMesh
	}
	var errs []error
	for i, d := range known {
		errs = append(errs, d.Validate())
		if slices.ContainsFunc(known[:i], func(other Dialect) bool { return other.Name == d.Name }) {
			errs = append(errs, d.invalid(errors.New("two dialects have this name, so a configuration can name one of them only")))
		}
	}
	return errors.Join(errs...)
}

// passes reports whether no family is captured, and one is not even discarded.
func passes(ipv4, ipv6 redirect.FamilyMode) bool {
	return ipv4 != redirect.FamilyCapture && ipv6 != redirect.FamilyCapture && (ipv4 == redirect.FamilyPass || ipv6 == redirect.FamilyPass)
}
