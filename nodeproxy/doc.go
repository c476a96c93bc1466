// Package nodeproxy hands pods to a mesh proxy that runs once on the node, takes them back, and sees to it that no pod
// silently falls out of its care.
package nodeproxy
