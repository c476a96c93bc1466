package zds

// GroupBy sets whom a connection counts for.
func (o *Options) GroupBy(group func() string) { o.group = func(int32) string { return group() } }

var GroupOf = groupOf

// The paces of the socket.
const (
	AcceptBurst, AcceptEvery = acceptBurst, acceptEvery
	ChangeBurst, ChangeEvery = changeBurst, changeEvery
	Backlog                  = backlog
)
