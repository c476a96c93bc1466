package plugin

import (
	"encoding/json"
	"time"

	"github.com/meshcni/meshcni/plugin/attachment"
)

// attachment is what the runtime calls this attachment.
func (c *call) attachment() attachment.ID {
	return attachment.ID{Network: c.config.Name, ContainerID: c.env.containerID, IfName: c.env.ifName}
}

func recorded(path string, ns NetNS) attachment.NetNS {
	id := ns.ID()
	return attachment.NetNS{Path: path, Dev: id.Dev, Ino: id.Ino}
}

// remember leaves the record of what this ADD has done, also that it has passed a pod over. The pod does not depend on it:
// without a record CHECK passes.
func (c *call) remember() {
	r := &c.done
	r.ID = c.attachment()
	r.Pod = attachment.Pod{Namespace: c.id.namespace, Name: c.id.name, UID: c.id.uid}
	if r.Pod.UID == "" && c.pod != nil {
		r.Pod.UID = string(c.pod.UID)
	}
	r.Selected, r.Reason = c.event.decision.Selected, string(c.event.decision.Reason)
	r.By, r.Program, r.Time = c.env.command, c.Version(), time.Now().UTC()
	store := c.Attachments(c.config)
	err := store.Write(*r)
	if err == nil {
		err = store.Tidy()
	}
	if err != nil {
		c.event.warnings = append(c.event.warnings, err.Error())
	}
}

// forget removes the attachment's record. A DEL succeeds whatever comes of it.
func (c *call) forget() {
	if err := c.Attachments(c.config).Remove(c.attachment()); err != nil {
		c.logger().Warn("the attachment's record stays", "verb", c.env.command, "container_id", c.env.containerID, "error", err.Error())
	}
}

// forgetOthers removes the records of the network's attachments that the runtime does not count as valid. A runtime that
// names none at all, as opposed to an empty list, has not said which are.
func (c *call) forgetOthers(text []byte) {
	var given struct {
		Valid *[]validAttachment `json:"cni.dev/valid-attachments"`
		// The specification's first edition of GC called it so, and libcni gives both.
		Attachments *[]validAttachment `json:"cni.dev/attachments"`
	}
	if err := json.Unmarshal(text, &given); err != nil {
		c.logger().Warn("GC removes nothing: the valid attachments cannot be read", "error", err.Error())
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
			c.logger().Warn("GC removes nothing: an attachment has no container ID or interface", "index", i)
			return
		}
		valid = append(valid, attachment.ID{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	if err := c.Attachments(c.config).Retain(c.config.Name, valid); err != nil {
		c.logger().Warn("records of attachments stay", "verb", c.env.command, "error", err.Error())
	}
}

// validAttachment is one that a runtime names to GC (libcni's types.GCAttachment).
type validAttachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}
