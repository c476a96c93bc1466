package repair

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// recording is a backend that leaves word of what it has put into a pod's namespace, so that the plugin's CHECK holds the
// pod to that and no longer to what ADD did.
type recording struct {
	apply.Backend
	mender *InPlace
	pod    *corev1.Pod
	netns  netnsexec.ID
}

// Apply is the backend's.
func (b recording) Apply(ctx context.Context, rs ruleset.Ruleset) (apply.Result, error) {
	result, err := b.Backend.Apply(ctx, rs)
	if err == nil {
		b.record(rs, result)
	}
	return result, err
}

// record changes the records of the pod's attachments. A pod without any, because it started without the plugin, gets
// none: what the runtime calls its attachment is not known here, and CHECK passes.
func (b recording) record(rs ruleset.Ruleset, result apply.Result) {
	err := b.mender.Records.Change(func(r *attachment.Record) bool {
		if r.Pod.UID != string(b.pod.UID) || !r.NetNS.Is(b.netns) {
			return false
		}
		if r.Selected && r.Backend == result.Backend && r.Rules.Equal(rs) && slices.Equal(r.Unusable, result.Left()) {
			return false
		}
		r.Applied(result.Backend, rs, result.Skipped, result.Left()...)
		r.Selected, r.Reason, r.Dialect = true, string(selection.Selected), b.mender.Dialect.Name
		r.By, r.Program, r.Time = "repair", "", time.Now().UTC()
		return true
	})
	if err != nil {
		// The rules are there, which is what counts. A record that could not be written is gone, so CHECK does not know.
		b.mender.log().Warn("the plugin's record of a repaired pod cannot be brought up to date",
			"namespace", b.pod.Namespace, "pod", b.pod.Name, "uid", string(b.pod.UID), "error", err.Error())
	}
}

func (m *InPlace) log() *slog.Logger {
	if m.Log == nil {
		return slog.New(slog.NewJSONHandler(io.Discard, nil))
	}
	return m.Log
}
