package zds

import (
	"slices"
	"syscall"
)

// op is one request to one proxy.
type op struct {
	req    Request
	packet []byte
	netns  syscall.Conn // what an Add brings along

	snapshot  bool          // it comes from the snapshot, so nobody waits for it
	instead   *op           // the snapshot's request that an Add has taken the place of
	follows   *op           // an Add of the same pod that was on its way when this one was asked for
	abandoned bool          // who waited has gone
	had       bool          // the proxy has the pod anyway: from before, or by its snapshot
	sent      chan struct{} // closed when netns is no longer used
	done      chan struct{} // closed when err is final
	err       error
}

func newOp(r Request, netns syscall.Conn) (*op, error) {
	packet, err := r.marshal()
	if err != nil {
		return nil, err
	}
	return &op{req: r, packet: packet, netns: netns, sent: make(chan struct{}), done: make(chan struct{})}, nil
}

// end tells whoever waits how the request ended.
func (o *op) end(err error) {
	o.err = err
	close(o.done)
}

// queue holds the requests that are still to be sent to one proxy, in order. It is not safe for concurrent use.
type queue struct {
	ops []*op
}

// find returns the position of the first request about a pod, or -1.
func (q *queue) find(uid string) int {
	return slices.IndexFunc(q.ops, func(o *op) bool { return o.req.UID == uid })
}

// next takes the request that is to be sent now, or returns nil.
func (q *queue) next() *op {
	if len(q.ops) == 0 {
		return nil
	}
	o := q.ops[0]
	q.ops = q.ops[1:]
	return o
}

// drop takes a request out, and reports whether it was still there. What it has taken the place of is to be sent after all.
func (q *queue) drop(o *op) bool {
	at := slices.Index(q.ops, o)
	switch {
	case at < 0:
		return false
	case o.instead != nil:
		q.ops[at] = o.instead
	default:
		q.ops = slices.Delete(q.ops, at, at+1)
	}
	return true
}

// add queues an Add. If the snapshot is yet to name the pod, it takes that place: named only after SnapshotSent, a pod that
// the proxy has would be drained in between.
func (q *queue) add(o *op) {
	if at := q.find(o.req.UID); at >= 0 && q.ops[at].snapshot {
		o.instead = q.ops[at]
		q.ops[at] = o
		return
	}
	q.ops = append(q.ops, o)
}

// remove queues a Del, or returns the one that is queued already. What was to add or keep the pod before it ends with an
// error.
func (q *queue) remove(del *op) *op {
	q.ops = slices.DeleteFunc(q.ops, func(o *op) bool {
		gone := o.req.UID == del.req.UID && o.req.Kind != Del
		if gone {
			close(o.sent)
			o.end(errRemoved)
		}
		return gone
	})
	if at := q.find(del.req.UID); at >= 0 {
		return q.ops[at]
	}
	q.ops = append(q.ops, del)
	return del
}

// begin puts a snapshot before all that happened since it was asked for. A pod that was removed since is not in it. One that
// was added since is named by that request.
func (q *queue) begin(snapshot []*op, sent *op) {
	var all []*op
	for _, o := range snapshot {
		at := q.find(o.req.UID)
		switch {
		case at < 0:
			all = append(all, o)
		case q.ops[at].req.Kind == Add:
			q.ops[at].instead = o
			all = append(all, q.ops[at])
			q.ops = slices.Delete(q.ops, at, at+1)
		}
	}
	q.ops = slices.Concat(all, []*op{sent}, q.ops)
}

// fail ends all requests.
func (q *queue) fail(err error) {
	for _, o := range q.ops {
		close(o.sent)
		o.end(err)
	}
	q.ops = nil
}
