package attachment

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Format is the version of the records that this package writes. It reads no other.
const Format = 1

// ID names an attachment by the three values that identify it in the CNI specification. All are required.
type ID struct {
	Network     string `json:"network"`     // name of the network configuration
	ContainerID string `json:"containerID"` // CNI_CONTAINERID
	IfName      string `json:"ifName"`      // CNI_IFNAME
}

// String returns for example "network k8s, container c0ffee, interface eth0".
func (id ID) String() string {
	return fmt.Sprintf("network %s, container %s, interface %s", id.Network, id.ContainerID, id.IfName)
}

// NetNS is the network namespace that was programmed. Dev and Ino are the namespace file's, as in [netnsexec.ID], because a
// path may come to name another namespace.
type NetNS struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev,omitempty"`
	Ino  uint64 `json:"ino,omitempty"`
}

// Is reports whether n is the namespace with the ID. A zero n is none.
func (n NetNS) Is(id netnsexec.ID) bool {
	return n.Ino != 0 && id == netnsexec.ID{Dev: n.Dev, Ino: n.Ino}
}

// Record is the lasting account of one attachment.
type Record struct {
	Version int `json:"version"` // Write sets it to Format
	ID
	NetNS NetNS `json:"netns"`
	// Pod is the pod that the runtime named; zero if it named none.
	Pod status.ID `json:"pod,omitzero"`

	// Selected pods have their traffic redirected. Reason is the decision's cause.
	Selected bool        `json:"selected"`
	Reason   status.Code `json:"reason"`
	// Dialect names the mesh that was asked, if one was.
	Dialect string `json:"dialect,omitempty"`

	// Backend applied the Rules. Both are zero for a pod that was passed over.
	Backend ruleset.Backend `json:"backend,omitempty"`
	Rules   ruleset.Ruleset `json:"rules,omitzero"`
	// Skipped are the families of Rules that the kernel lacked, so that their rules were not set up.
	Skipped []ruleset.Family `json:"skipped,omitempty"`
	// Unusable are the routes and addresses of Rules that the namespace did not accept, as iproute2 commands.
	Unusable []string `json:"unusable,omitempty"`

	// By is the writer of the record, and Program its version.
	By      string    `json:"by"`
	Program string    `json:"program,omitempty"`
	Time    time.Time `json:"time"`

	rulesErr error // of Rules that this version does not know
}

// UnmarshalJSON reads a record of any version. Without Rules that this version does not know it is for people only, and no record
// to go by: [Store.All] refuses it.
func (r *Record) UnmarshalJSON(b []byte) error {
	type plain Record
	in := struct {
		*plain
		Rules json.RawMessage `json:"rules"`
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	if r.Rules, r.rulesErr = (ruleset.Ruleset{}), nil; len(in.Rules) > 0 {
		if r.rulesErr = json.Unmarshal(in.Rules, &r.Rules); r.rulesErr != nil {
			r.Rules = ruleset.Ruleset{}
		}
	}
	return nil
}

// String returns for example "network k8s, container c0ffee, interface eth0: pod shop/web, captured by istio". It has no rules.
func (r Record) String() string {
	text := r.ID.String() + ":"
	if r.Pod != (status.ID{}) {
		text += " pod " + r.Pod.Namespace + "/" + r.Pod.Name + ","
	}
	if r.Selected {
		return text + " captured by " + r.Dialect
	}
	return text + " not captured: " + string(r.Reason)
}

// Applied notes rules that are in force from now on, and what of them is not.
func (r *Record) Applied(backend ruleset.Backend, rules ruleset.Ruleset, skipped []ruleset.Family, unusable ...string) {
	r.Backend, r.Rules, r.Skipped, r.Unusable = backend, rules, skipped, unusable
}

// Lost divides the differences from [Record.InForce] into those by which redirection that was set up is no longer in force,
// and the others. What could not be set up in the first place is not lost, an extra address, route or policy rule takes
// nothing away, and an address of lo redirects nothing: without it the proxy may not reach the application, but nothing
// gets past the proxy. Nor is lost what cannot be told.
func (r *Record) Lost(diffs []ruleset.Difference) (lost, others []ruleset.Difference) {
	for _, d := range diffs {
		if d.Kind == ruleset.KindUnknown || d.Table == ruleset.RoutingTable &&
			(d.Kind == ruleset.KindUnexpected || d.Chain == ruleset.AddressChain || slices.Contains(r.Unusable, d.Rule)) {
			others = append(others, d)
		} else {
			lost = append(lost, d)
		}
	}
	return lost, others
}

// InForce returns the rules that were set up: those of the families that the kernel had.
func (r *Record) InForce() ruleset.Ruleset {
	var rs ruleset.Ruleset
	for _, f := range ruleset.Families {
		if p := r.Rules.Family(f); p != nil && !slices.Contains(r.Skipped, f) {
			rs.Set(p)
		}
	}
	return rs
}

// valid returns the faults of a record that was read.
func (r *Record) valid() error {
	if r.Version != Format {
		return fmt.Errorf("its format is %d, and only %d is known here", r.Version, Format)
	}
	if r.rulesErr != nil {
		return r.rulesErr
	}
	if r.Rules != (ruleset.Ruleset{}) {
		if err := r.Rules.Validate(); err != nil {
			return err
		}
	}
	if r.Selected && r.Backend == "" {
		return errors.New("it says that rules were set up, and not by what")
	}
	return nil
}
