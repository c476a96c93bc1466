package podnetns

// MadeUnmounted is what Made returns where no mount of control groups is to be seen.
func MadeUnmounted(controllers, dir string) error {
	h := &hierarchies{root: "/none", own: map[string]int{}}
	defer h.close()
	return h.made(controllers, dir)
}
