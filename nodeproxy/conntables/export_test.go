//go:build linux

package conntables

import "time"

// SearchAgain has the next reading search for processes.
func (t *Tables) SearchAgain() { t.searched = time.Time{} }

// Netlink has the kernel asked over netlink, as where it does not show the file.
func (t *Tables) Netlink() *Tables {
	t.netlink = true
	return t
}
