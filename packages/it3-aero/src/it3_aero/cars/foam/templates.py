"""OpenFOAM's dictionaries as templates; `$name` is filled in by `dictionaries`.

OpenFOAM 1912's reader needs a space before an opening parenthesis.
"""

__all__ = ["FIELDS", "SYSTEM"]

BLOCK_MESH = """\
scale 1;
vertices
(
    ($x0 $y0 0) ($x1 $y0 0) ($x1 $y1 0) ($x0 $y1 0)
    ($x0 $y0 $z1) ($x1 $y0 $z1) ($x1 $y1 $z1) ($x0 $y1 $z1)
);
blocks ( hex (0 1 2 3 4 5 6 7) ($nx $ny $nz) simpleGrading (1 1 1) );
edges ();
boundary
(
    inlet { type patch; faces ( (0 4 7 3) ); }
    outlet { type patch; faces ( (2 6 5 1) ); }
    ground { type wall; faces ( (0 3 2 1) ); }
    sky { type patch; faces ( (4 5 6 7) ); }
    right { type $right; faces ( (1 5 4 0) ); }
    left { type patch; faces ( (3 7 6 2) ); }
);
"""

FEATURES = """\
car.stl
{
    extractionMethod extractFromSurface;
    includedAngle 150;
    subsetFeatures { nonManifoldEdges no; openEdges yes; }
    writeObj no;
}
"""

SNAPPY = """\
castellatedMesh true;
snap true;
addLayers $add_layers;
geometry
{
    car.stl { type triSurfaceMesh; name car; }
    around { type box; min ($around_min); max ($around_max); }
    wake { type box; min ($wake_min); max ($wake_max); }
    base { type box; min ($base_min); max ($base_max); }
}
castellatedMeshControls
{
    maxLocalCells $most_cells;
    maxGlobalCells $most_cells;
    minRefinementCells 0;
    maxLoadUnbalance 0.1;
    nCellsBetweenLevels 2;
    features ( { file "car.eMesh"; level $edges; } );
    refinementSurfaces { car { level ($low $high); patchInfo { type wall; } } }
    resolveFeatureAngle 30;
    refinementRegions
    {
        around { mode inside; levels ( (1e15 $level_around) ); }
        wake { mode inside; levels ( (1e15 $level_wake) ); }
        base { mode inside; levels ( (1e15 $level_base) ); }
    }
    locationInMesh ($inside);
    allowFreeStandingZoneFaces false;
}
snapControls
{
    nSmoothPatch 3;
    tolerance 2.0;
    nSolveIter 30;
    nRelaxIter 5;
    nFeatureSnapIter 10;
    implicitFeatureSnap false;
    explicitFeatureSnap true;
    multiRegionFeatureSnap false;
}
addLayersControls
{
    relativeSizes true;
    layers { car { nSurfaceLayers $layers; } }
    expansionRatio 1.2;
    finalLayerThickness 0.4;
    minThickness 0.1;
    nGrow 0;
    featureAngle 60;
    slipFeatureAngle 30;
    nRelaxIter 3;
    nSmoothSurfaceNormals 1;
    nSmoothNormals 3;
    nSmoothThickness 10;
    maxFaceThicknessRatio 0.5;
    maxThicknessToMedialRatio 0.3;
    minMedialAxisAngle 90;
    nBufferCellsNoExtrude 0;
    nLayerIter 50;
}
meshQualityControls
{
    maxNonOrtho 65;
    maxBoundarySkewness 20;
    maxInternalSkewness 4;
    maxConcave 80;
    minVol 1e-13;
    minTetQuality 1e-15;
    minArea -1;
    minTwist 0.02;
    minDeterminant 0.001;
    minFaceWeight 0.05;
    minVolRatio 0.01;
    minTriangleTwist -1;
    nSmoothScale 4;
    errorReduction 0.75;
    relaxed { maxNonOrtho 75; }
}
mergeTolerance 1e-6;
"""

CONTROL = """\
application simpleFoam;
startFrom latestTime;
startTime 0;
stopAt endTime;
endTime $end;
deltaT 1;
writeControl timeStep;
writeInterval $every;
purgeWrite 1;
writeFormat binary;
writePrecision 12;
writeCompression off;
timeFormat general;
timePrecision 6;
runTimeModifiable false;
functions
{
    forceCoeffs1
    {
        type forceCoeffs;
        libs (forces);
        writeControl timeStep;
        writeInterval 1;
        log no;
        patches (car);
        rho rhoInf;
        rhoInf 1;
        liftDir (0 0 1);
        dragDir (1 0 0);
        CofR (0 0 0);
        pitchAxis (0 1 0);
        magUInf $speed;
        lRef $length;
        Aref $area;
    }
    surfaces1
    {
        type surfaces;
        libs (sampling);
        writeControl writeTime;
        surfaceFormat raw;
        fields (p);
        interpolationScheme cell;
        surfaces ( car { type patch; patches (car); interpolate false; triangulate false; } );
    }
}
"""

SCHEMES = """\
ddtSchemes { default steadyState; }
gradSchemes { default Gauss linear; grad(U) cellLimited Gauss linear 1; }
divSchemes
{
    default none;
    div(phi,U) bounded Gauss linearUpwind grad(U);
    div(phi,k) bounded Gauss upwind;
    div(phi,epsilon) bounded Gauss upwind;
    div((nuEff*dev2(T(grad(U))))) Gauss linear;
}
laplacianSchemes { default Gauss linear limited 0.5; }
interpolationSchemes { default linear; }
snGradSchemes { default limited 0.5; }
wallDist { method meshWave; }
"""

SOLUTION = """\
solvers
{
    p { solver GAMG; smoother GaussSeidel; tolerance 1e-7; relTol 0.05; }
    U { solver smoothSolver; smoother GaussSeidel; tolerance 1e-8; relTol 0.1; nSweeps 1; }
    k { solver smoothSolver; smoother GaussSeidel; tolerance 1e-8; relTol 0.1; nSweeps 1; }
    epsilon { solver smoothSolver; smoother GaussSeidel; tolerance 1e-8; relTol 0.1; nSweeps 1; }
}
SIMPLE { nNonOrthogonalCorrectors 0; consistent yes; pRefCell 0; pRefValue 0; }
relaxationFactors { equations { U 0.9; k 0.7; epsilon 0.7; } }
cache { grad(U); }
"""

DECOMPOSE = """\
numberOfSubdomains $ranks;
method hierarchical;
hierarchicalCoeffs { n ($ranks 1 1); delta 0.001; order xyz; }
"""

TRANSPORT = """\
transportModel Newtonian;
nu $viscosity;
"""

TURBULENCE = """\
simulationType RAS;
RAS { RASModel $turbulence; turbulence on; printCoeffs off; }
"""

SYSTEM = {
    "system/blockMeshDict": BLOCK_MESH,
    "system/surfaceFeatureExtractDict": FEATURES,
    "system/snappyHexMeshDict": SNAPPY,
    "system/controlDict": CONTROL,
    "system/fvSchemes": SCHEMES,
    "system/fvSolution": SOLUTION,
    "system/decomposeParDict": DECOMPOSE,
    "constant/transportProperties": TRANSPORT,
    "constant/turbulenceProperties": TURBULENCE,
}

_SIDES = "sky { type slip; } left { type slip; } right { type $right_field; }"

VELOCITY = (
    """\
dimensions [0 1 -1 0 0 0 0];
internalField uniform ($speed 0 0);
boundaryField
{
    inlet { type fixedValue; value uniform ($speed 0 0); }
    outlet { type inletOutlet; inletValue uniform (0 0 0); value uniform ($speed 0 0); }
    ground { type fixedValue; value uniform ($speed 0 0); }
    car { type noSlip; }
    """
    + _SIDES
    + "\n}\n"
)

PRESSURE = (
    """\
dimensions [0 2 -2 0 0 0 0];
internalField uniform 0;
boundaryField
{
    inlet { type zeroGradient; }
    outlet { type fixedValue; value uniform 0; }
    ground { type zeroGradient; }
    car { type zeroGradient; }
    """
    + _SIDES
    + "\n}\n"
)

ENERGY = (
    """\
dimensions [0 2 -2 0 0 0 0];
internalField uniform $k;
boundaryField
{
    inlet { type fixedValue; value uniform $k; }
    outlet { type inletOutlet; inletValue uniform $k; value uniform $k; }
    ground { type kqRWallFunction; value uniform $k; }
    car { type kqRWallFunction; value uniform $k; }
    """
    + _SIDES
    + "\n}\n"
)

DISSIPATION = (
    """\
dimensions [0 2 -3 0 0 0 0];
internalField uniform $epsilon;
boundaryField
{
    inlet { type fixedValue; value uniform $epsilon; }
    outlet { type inletOutlet; inletValue uniform $epsilon; value uniform $epsilon; }
    ground { type epsilonWallFunction; value uniform $epsilon; }
    car { type epsilonWallFunction; value uniform $epsilon; }
    """
    + _SIDES
    + "\n}\n"
)

EDDY = """\
dimensions [0 2 -1 0 0 0 0];
internalField uniform 0;
boundaryField
{
    "(inlet|outlet|sky|left)" { type calculated; value uniform 0; }
    right { type $right_nut; value uniform 0; }
    "(ground|car)" { type nutkWallFunction; value uniform 0; }
}
"""

FIELDS = {
    "0/U": ("volVectorField", VELOCITY),
    "0/p": ("volScalarField", PRESSURE),
    "0/k": ("volScalarField", ENERGY),
    "0/epsilon": ("volScalarField", DISSIPATION),
    "0/nut": ("volScalarField", EDDY),
}
