package attachment

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Format is the version of the records that this package writes. It reads no other.
const Format = 1

// ID names an attachment, by the three values that the CNI specification knows it by. All are required.
type ID struct {
	Network     string `json:"network"`     // name of the network configuration
	ContainerID string `json:"containerID"` // CNI_CONTAINERID
	IfName      string `json:"ifName"`      // CNI_IFNAME
}

// String returns for example "network k8s, container c0ffee, interface eth0".
func (id ID) String() string {
	return fmt.Sprintf("network %s, container %s, interface %s", id.Network, id.ContainerID, id.IfName)
}

// NetNS is the network namespace that was programmed. Dev and Ino are the namespace file's, as in [netnsexec.ID]: a path may
// come to name another namespace.
type NetNS struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev,omitempty"`
	Ino  uint64 `json:"ino,omitempty"`
}

// Is reports whether it is the namespace of the ID. One that is not known is none.
func (n NetNS) Is(id netnsexec.ID) bool {
	return n.Ino != 0 && id == netnsexec.ID{Dev: n.Dev, Ino: n.Ino}
}

// Pod is whose attachment it is; the zero value where the runtime named none. UID is the runtime's word, by which the
// pod's control groups are named too: for a static pod that is not the UID of its image at the API server.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Record is what was done to one attachment.
type Record struct {
	Version int `json:"version"` // set by Write: Format
	ID
	NetNS NetNS `json:"netns"`
	Pod   Pod   `json:"pod,omitzero"`

	// Selected is whether the pod's traffic is redirected, and Reason why or why not, as a code of package selection.
	Selected bool   `json:"selected"`
	Reason   string `json:"reason"`
	// Dialect is the mesh's, where one was asked.
	Dialect string `json:"dialect,omitempty"`

	// Backend put the Rules there; a name of package apply. Both are zero for a pod that was passed over.
	Backend string          `json:"backend,omitempty"`
	Rules   ruleset.Ruleset `json:"rules,omitzero"`
	// Skipped are the families of Rules that the kernel did not have, so that their rules were not set up.
	Skipped []ruleset.Family `json:"skipped,omitempty"`
	// Unusable are parts of Rules besides the rules themselves, as iproute2 commands, that the namespace did not take, so
	// that they were not set up.
	Unusable []string `json:"unusable,omitempty"`

	// By is who wrote the record, and Program in which version.
	By      string    `json:"by"`
	Program string    `json:"program,omitempty"`
	Time    time.Time `json:"time"`
}

// Applied notes rules that are in force from now on, and what of them is not.
func (r *Record) Applied(backend string, rules ruleset.Ruleset, skipped []ruleset.Family, unusable ...string) {
	r.Backend, r.Rules, r.Skipped, r.Unusable = backend, rules, skipped, unusable
}

// Lost tells those of the differences from [Record.InForce] by which redirection that was set up is no longer in force from the others. What
// could not be set up is not lost when it could be now, and an address, a route or a policy rule too many takes nothing away.
// An address of lo redirects nothing: without it the proxy may not reach the application, and none gets past the proxy.
func (r *Record) Lost(diffs []ruleset.Difference) (lost, others []ruleset.Difference) {
	for _, d := range diffs {
		if d.Table == ruleset.RoutingTable &&
			(d.Kind == ruleset.Unexpected || d.Chain == ruleset.AddressChain || slices.Contains(r.Unusable, d.Rule)) {
			others = append(others, d)
		} else {
			lost = append(lost, d)
		}
	}
	return lost, others
}

// InForce are the rules that were set up: those of the families that the kernel had.
func (r *Record) InForce() ruleset.Ruleset {
	var rs ruleset.Ruleset
	for _, f := range ruleset.Families {
		if p := r.Rules.Program(f); p != nil && !slices.Contains(r.Skipped, f) {
			rs.Set(p)
		}
	}
	return rs
}

// valid says what is wrong with a record that was read.
func (r *Record) valid() error {
	if r.Version != Format {
		return fmt.Errorf("its format is %d, and only %d is known here", r.Version, Format)
	}
	for _, f := range ruleset.Families {
		p := r.Rules.Program(f)
		switch {
		case p == nil:
		case p.Family != f:
			return fmt.Errorf("its %s rules are %s", f, p.Family)
		case p.Owner.Prefix == "":
			return fmt.Errorf("its %s rules have no owner", f)
		}
	}
	if r.Selected && r.Backend == "" {
		return errors.New("it says that rules were set up, and not by what")
	}
	return nil
}
