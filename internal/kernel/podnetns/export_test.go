package podnetns

// ErrTenants is what Made returns for a group that another than root may make.
var ErrTenants = errTenants
