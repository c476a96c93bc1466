package plugin

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// AttachmentID names one network of a pod by the runtime's words.
type AttachmentID = attachment.ID

// Records opens the records that ADD leaves in a run_dir, as package repair takes them. Nothing is read yet, and the directory need not exist.
func Records(runDir string) attachment.Store { return attachment.Open(runDir) }

// remember leaves the record of a successful ADD, also of one that passed the pod over. The pod does not depend on it:
// without a record CHECK passes.
func (r *run) remember(done captured) error {
	record := attachment.Record{
		ID:       r.attachment,
		Pod:      status.ID{Namespace: r.pod.namespace, Name: r.pod.name, UID: r.pod.uid},
		Selected: done.decision.Selected, Reason: done.decision.Reason, Dialect: done.mesh,
		By: r.command, Program: r.version(), Time: time.Now().UTC(),
	}
	if done.netns.Ino != 0 {
		record.NetNS = attachment.NetNS{Path: r.netns, Dev: done.netns.Dev, Ino: done.netns.Ino}
	}
	if pod := done.answer.pod; pod != nil && record.Pod.UID == "" {
		record.Pod.UID = string(pod.UID)
	}
	if done.outcome != Passed {
		record.Applied(done.backend, done.plan.Ruleset, done.result.Skipped, append(done.result.Left(), done.left...)...)
	}
	store := r.Attachments(r.config)
	if err := store.Write(record); err != nil {
		return err
	}
	return store.Tidy(record.ID)
}

// prepare begins, beside the kernel's work, what the record and the log need and what does not depend on the result: the first
// encoding of a type, the time zone, and the log's destinations take a tenth of an ADD. The function that it
// returns waits for that.
func (r *run) prepare() (ready func()) {
	_ = r.logger()
	destinations, _ := r.closeLog.(interface{ Prepare() })
	var preparing sync.WaitGroup
	preparing.Go(func() {
		quietly(func() {
			empty := &ruleset.FamilyRuleset{Chains: []ruleset.Chain{{Rules: []ruleset.Rule{{}}}}}
			_, _ = json.Marshal(attachment.Record{Rules: ruleset.Ruleset{IPv4: empty}, Time: time.Now()})
			if destinations != nil {
				destinations.Prepare()
			}
			_ = time.Now().String()
		})
	})
	return preparing.Wait
}

// forget removes the attachment's record, and tells the agent where a proxy on the node has the pod. DEL succeeds even if
// neither works.
func (r *run) forget(ctx context.Context) {
	r.detach(ctx)
	if err := r.Attachments(r.config).Remove(r.attachment); err != nil {
		r.logger().Warn("the attachment's record stays", "verb", r.command, "container_id", r.attachment.ContainerID, "error", err.Error())
	}
}

// forgetOthers removes the records of the network's attachments that the runtime does not list as valid. It removes nothing
// if there is no list, as opposed to an empty one.
func (r *run) forgetOthers() {
	type list []struct { // libcni's types.GCAttachment
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	}
	var given struct {
		Valid *list `json:"cni.dev/valid-attachments"`
		// The specification's first edition of GC used this name, and libcni gives both.
		Attachments *list `json:"cni.dev/attachments"`
	}
	if err := json.Unmarshal(r.stdin, &given); err != nil {
		r.logger().Warn("GC removes nothing: the valid attachments cannot be read", "error", err.Error())
		return
	}
	if given.Valid == nil {
		given.Valid = given.Attachments
	}
	if given.Valid == nil {
		return
	}
	var valid []attachment.ID
	for i, a := range *given.Valid {
		if a.ContainerID == "" || a.IfName == "" {
			r.logger().Warn("GC removes nothing: an attachment has no container ID or interface", "index", i)
			return
		}
		valid = append(valid, attachment.ID{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	if err := r.Attachments(r.config).Retain(r.config.Name, valid, time.Time{}); err != nil {
		r.logger().Warn("records of attachments stay", "verb", r.command, "error", err.Error())
	}
}
